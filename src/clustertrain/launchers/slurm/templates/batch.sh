# From here on the script is the same for every job. It starts one agent on each node. For the agent of this
# node it queries the state of the job, because an agent in a container has no scontrol. At the end it requeues
# the job if that agent requests it.

trap ': > "$mail/lead"' USR1 USR2
trap ': > "$mail/term"' TERM

CLUSTERTRAIN_AT_TIME_LIMIT=$at_time_limit
CLUSTERTRAIN_NODES=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd, -)
CLUSTERTRAIN_TOKEN=$(od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n')
export CLUSTERTRAIN_AT_TIME_LIMIT CLUSTERTRAIN_NODES CLUSTERTRAIN_TOKEN

# Whether SLURM has not requeued the job since. A node that lost the network and returns still runs this script
# after SLURM has started the job on other nodes. It must not signal or requeue that start.
is_newest_start() {
  local job
  for _ in {1..60}; do # as long as SLURM's controller does not answer: it may be restarted
    if job=$(scontrol show job "$SLURM_JOB_ID" -o 2>&1) || [[ $job == *"Invalid job id"* ]]; then break; fi
    read -r -t 1 -u 9 _
  done
  [[ $job == *" Restarts=${SLURM_RESTART_COUNT:-0} "* ]]
}

# The lines of slurm.setup run in a login shell, which defines `module`, and this shell then starts the agents:
# what the lines export reaches all nodes. Their shell options, traps and variables do not reach this script. The
# first line that fails ends the job; a failure inside a file that a line sources counts only if the line fails.
# shellcheck disable=SC2317  # the shell of slurm.setup calls it
setup_ended() {
  local code=$1 line=$2 file=$3 lines
  if [ -n "$line" ] && [ "$file" != "$CLUSTERTRAIN_MAIL/setup" ]; then return; fi
  trap - ERR EXIT
  mapfile -t lines < "$CLUSTERTRAIN_MAIL/setup"
  if [ -n "$line" ]; then
    echo "error: slurm.setup on $SLURMD_NODENAME: line $line ended with code $code: ${lines[line - 1]}"
    echo "The lines above show the cause. If the job can run without it, append to this line:  || true"
  else
    echo "error: slurm.setup on $SLURMD_NODENAME ended with code $code before the end of its last line."
    echo "The lines above show the cause. No line may end its shell, as exit and an unclosed quote do."
  fi
  command -p ln -s "end 3" "$CLUSTERTRAIN_MAIL/verdict" # a line may have changed PATH
  exit 3
}
if [ -n "$setup" ]; then
  printf '%s\n' "$setup" ": > '$mail/set-up'" > "$mail/setup"
  # shellcheck disable=SC2016  # the login shell expands these
  launch=("$BASH" -l -c "$(declare -f setup_ended)"'
    readonly clustertrain_folder=$1 clustertrain_launch=("${@:2}")
    cd "$clustertrain_folder" # the profile may have left it
    trap '\''setup_ended "$?" "$LINENO" "${BASH_SOURCE[0]:-}"'\'' ERR
    trap '\''setup_ended "$?" "" ""'\'' EXIT
    source "$CLUSTERTRAIN_MAIL/setup"
    if [ ! -e "$CLUSTERTRAIN_MAIL/set-up" ]; then setup_ended "$?" "" ""; fi
    trap - ERR EXIT
    cd "$clustertrain_folder"
    exec "${clustertrain_launch[@]}"' setup "$PWD" "${launch[@]}")
fi

# What srun and the agents print as errors also goes to a file: there the agent of this node reads that another
# agent has ended. SLURM's signals to all processes of the job must not end `tee`.
exec 8> >(trap '' TERM USR1 USR2 && exec tee "$mail/errors" >&2)
tee=$!
"${launch[@]}" "${CLUSTERTRAIN_SUBMISSION:-$job}" < /dev/null 2>&8 8>&- &
step=$!
exec 8>&-

# `read` from an empty pipe is a sleep without a process. SLURM's TERM would kill a `sleep`, and bash would
# report that in the output.
mkfifo "$mail/empty" && exec 9<> "$mail/empty"
while kill -0 "$step" 2> /dev/null; do
  read -r -t 0.2 -u 9 _
  if [ -e "$mail/query" ]; then
    rm -f "$mail/query"
    {
      scontrol show job "$SLURM_JOB_ID" -o
      scontrol show config | grep -E '^(KillWait|Configuration data as of)'
      sinfo --noheader --nodes="$SLURM_JOB_NODELIST" --states=down --format='Down: %N|%T|%H|%E'
    } > "$mail/answer.new" 2>&1
    mv "$mail/answer.new" "$mail/answer"
  fi
  if [[ -z ${ended_at:-} && (-e $mail/verdict || -L $mail/verdict) ]]; then ended_at=$SECONDS; fi
  # A node that still waits for the head cannot see that the agent here has ended: TERM ends its agent. The
  # other agents have ended or ignore the signal.
  if [ -n "${ended_at:-}" ] && ((SECONDS >= ended_at + 3)) && [ -z "${term_sent:-}" ]; then
    term_sent=yes
    if is_newest_start; then scancel --signal=TERM "$SLURM_JOB_ID"; fi
  fi
done
wait "$step"
code=$?
for _ in {1..10}; do # the last errors; a process that slurm.setup left behind may hold the pipe open
  kill -0 "$tee" 2> /dev/null || break
  read -r -t 0.1 -u 9 _
done

verdict=end
if [[ -e $mail/verdict || -L $mail/verdict ]]; then
  read -r verdict code < <(readlink "$mail/verdict" || cat "$mail/verdict")
elif [ -n "$setup" ] && [ ! -e "$mail/set-up" ] && [ ! -e "$mail/term" ]; then
  echo "error: the login shell on $(hostname) ended with code $code before slurm.setup."
  echo "Likely cause: a command such as exec or exit in the profile of this user, such as ~/.bash_profile."
  code=3
elif [ ! -e "$mail/agent" ] && [ ! -e "$mail/term" ]; then
  echo "error: no agent started on $(hostname); the lines above show the cause (code $code)."
  cause="slurm.python, the image or the program of slurm.container does not exist on the nodes."
  if grep -q "^srun: error: Unable to create step" "$mail/errors"; then cause="SLURM gave srun no step."; fi
  echo "Likely cause: $cause"
  code=3
fi
trap '' TERM
rm -rf "$mail" # before the requeue, which kills this shell
if [ "$verdict" = requeue ] && is_newest_start && scontrol requeue "$SLURM_JOB_ID"; then
  echo "clustertrain: job $SLURM_JOB_ID is requeued: the run continues from its newest checkpoint, if it has one"
fi
exit "$code"
