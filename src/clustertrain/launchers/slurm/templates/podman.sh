# A task around podman: the agent finds SLURM's signals in its mailbox, which the head alone has. Podman would
# pass them on by processes of its own, and a TERM to all of a step (proctrack/linuxproc) ends those as well.
# shellcheck disable=SC2317  # called by the shell on each node, as fetch is
hear() {
  trap ': 2> /dev/null > "$CLUSTERTRAIN_MAIL/lead"' USR1 USR2
  trap ': 2> /dev/null > "$CLUSTERTRAIN_MAIL/term"' TERM
  "$@" &
  while kill -0 "$!" 2> /dev/null; do wait "$!"; done
  wait "$!"
}
# Each node has the image, or all of them fetch it at once; one of them says why it cannot.
# shellcheck disable=SC2317
fetch() {
  podman image exists "$1" || podman pull --quiet "$1" 2>&1 | sed "s/^/$SLURMD_NODENAME: /"
}
export -f hear fetch
# shellcheck disable=SC2016  # for that shell, too
if ! said=$(srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --export=ALL bash -o pipefail -c 'fetch "$1"' fetch "$image" 2>&1); then
  grep -v -m 1 -e level=warning -e '^srun: ' <<< "$said"
  echo "error: image is $image, and not all nodes of the job have it or can fetch it."
  echo "Try podman pull $image there; one that is in no registry has to be brought to each node."
  exit 4
fi

