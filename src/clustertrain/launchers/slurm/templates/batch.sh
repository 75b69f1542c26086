# From here on the script is the same for every job. It starts one agent on each node. For the agent of this
# node it queries the state of the job, because an agent in a container has no scontrol. At the end it requeues
# the job if that agent requests it.

# The process that owns the mailbox, which is a folder. If the process was killed, a later start removes the
# folder (private_folder.py). The owner is computed before the folder is created, because a kill between the two
# steps must not leave a folder without an owner, which would never be removed.
owner=$(printf '{"host": "%s/%s/%s", "pid": %s, "pid_started_ticks": %s}' "$(hostname)" \
  "$(cat /proc/sys/kernel/random/boot_id)" "$(readlink /proc/self/ns/pid)" "$$" \
  "$(cut -d ' ' -f 22 "/proc/$$/stat")")
mail=$(mktemp -d "${TMPDIR:-/tmp}/ct-mail-XXXXXXXX") || exit 4
printf '%s' "$owner" > "$mail/owner"
trap ': > "$mail/lead"' USR1 USR2
trap ': > "$mail/term"' TERM

CLUSTERTRAIN_MAIL=$mail
CLUSTERTRAIN_AT_TIME_LIMIT=$at_time_limit
CLUSTERTRAIN_NODES=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd, -)
CLUSTERTRAIN_TOKEN=$(od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n')
export CLUSTERTRAIN_MAIL CLUSTERTRAIN_AT_TIME_LIMIT CLUSTERTRAIN_NODES CLUSTERTRAIN_TOKEN

# Whether SLURM has not requeued the job since. A node that lost the network and returns still runs this script
# after SLURM has started the job on other nodes. It must not signal or requeue that start.
is_newest_start() {
  scontrol show job "$SLURM_JOB_ID" -o 2>&1 | grep -q " Restarts=${SLURM_RESTART_COUNT:-0} "
}

"${launch[@]}" "${CLUSTERTRAIN_SUBMISSION:-$job}" < /dev/null &
step=$!

# `read` from an empty pipe is a sleep without a process. SLURM's TERM would kill a `sleep`, and bash would
# report that in the output.
mkfifo "$mail/empty" && exec 9<> "$mail/empty"
while kill -0 "$step" 2> /dev/null; do
  read -r -t 0.2 -u 9 _
  if [ -e "$mail/query" ]; then
    rm -f "$mail/query"
    { scontrol show job "$SLURM_JOB_ID" -o; scontrol show config | grep -E '^KillWait'; } > "$mail/answer.new" 2>&1
    mv "$mail/answer.new" "$mail/answer"
  fi
  if [ -z "${ended_at:-}" ] && [ -e "$mail/verdict" ]; then ended_at=$SECONDS; fi
  # A node that still waits for the head cannot see that the agent here has ended: TERM ends its agent. The
  # other agents have ended or ignore the signal.
  if [ -n "${ended_at:-}" ] && ((SECONDS >= ended_at + 3)) && [ -z "${term_sent:-}" ]; then
    term_sent=yes
    if is_newest_start; then scancel --signal=TERM "$SLURM_JOB_ID"; fi
  fi
done
wait "$step"
code=$?

verdict=end
if [ -e "$mail/verdict" ]; then
  read -r verdict code < "$mail/verdict"
elif [ "$code" -ne 0 ] && [ ! -e "$mail/agent" ] && [ ! -e "$mail/term" ]; then
  echo "error: no agent started on $(hostname); the lines above show the cause (code $code)."
  echo "Likely cause: slurm.python, the image or the program of slurm.container does not exist on the nodes."
  code=3
fi
trap '' TERM
rm -rf "$mail"
if [ "$verdict" = requeue ] && is_newest_start && scontrol requeue "$SLURM_JOB_ID"; then
  echo "clustertrain: job $SLURM_JOB_ID is requeued and resumes from its newest checkpoint"
fi
exit "$code"
