# From here on the script is the same for every job. It starts one agent on each node, answers the agent of
# this node what SLURM says about the job (an agent in a container has no scontrol), and starts the job again
# where the agent says so.
# Who holds the folder, so that a later start knows one that was left behind (processes.py). It is found out
# before there is a folder: one without its owner would be left for good if the job were killed here.
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

# A node that was cut off and comes back still runs this, when SLURM has long started the job again on others:
# they must not hear from here.
is_this_start() {
  scontrol show job "$SLURM_JOB_ID" -o 2>&1 | grep -q " Restarts=${SLURM_RESTART_COUNT:-0} "
}

"${launch[@]}" "${CLUSTERTRAIN_SUBMISSION:-$job}" < /dev/null &
step=$!

# A pause that starts no process: SLURM's TERM would kill it, and bash would say so in the output.
mkfifo "$mail/bell" && exec 9<> "$mail/bell"
while kill -0 "$step" 2> /dev/null; do
  read -r -t 0.2 -u 9 _
  if [ -e "$mail/ask" ]; then
    rm -f "$mail/ask"
    { scontrol show job "$SLURM_JOB_ID" -o; scontrol show config | grep -E '^KillWait'; } > "$mail/answer.new" 2>&1
    mv "$mail/answer.new" "$mail/answer"
  fi
  if [ -z "${over:-}" ] && [ -e "$mail/verdict" ]; then over=$SECONDS; fi
  # Nodes that still wait for this one to begin do not see that it ended; those that ended ignore it.
  if [ -n "${over:-}" ] && ((SECONDS >= over + 3)) && [ -z "${told:-}" ]; then
    told=yes
    if is_this_start; then scancel --signal=TERM "$SLURM_JOB_ID"; fi
  fi
done
wait "$step"
code=$?

verdict=end
if [ -e "$mail/verdict" ]; then
  read -r verdict code < "$mail/verdict"
elif [ "$code" -ne 0 ] && [ ! -e "$mail/agent" ] && [ ! -e "$mail/term" ]; then
  echo "error: no agent came up on $(hostname); the lines above say why (code $code)."
  echo "Likely cause: slurm.python, the image, or slurm.container's program is not there on the nodes."
  code=3
fi
trap '' TERM
rm -rf "$mail"
if [ "$verdict" = requeue ] && is_this_start && scontrol requeue "$SLURM_JOB_ID"; then
  echo "clustertrain: job $SLURM_JOB_ID goes back to the queue, and on from its newest checkpoint"
fi
exit "$code"
