# Four functions for podman. The task of each node runs podman through record_signals, which records SLURM's
# signals in the mailbox of the head's agent. Podman would forward signals through further processes, and a TERM
# to all processes of a step (proctrack/linuxproc) would end these.
# shellcheck disable=SC2317  # the shell on each node calls this function and the next two
record_signals() {
  trap ': 2> /dev/null > "$CLUSTERTRAIN_MAIL/lead"' USR1 USR2
  trap ': 2> /dev/null > "$CLUSTERTRAIN_MAIL/term"' TERM
  "$@" &
  while kill -0 "$!" 2> /dev/null; do wait "$!"; done
  wait "$!"
}
# The container gets the devices of InfiniBand, RoCE and EFA of its node, if there are any. Without them NCCL would
# use TCP. `--ulimit=host` gives it the node's limit of locked memory, which they need.
# shellcheck disable=SC2317
run_podman() {
  local devices=()
  if [ -d /dev/infiniband ]; then devices=(--device=/dev/infiniband); fi
  record_signals podman --runtime=crun run "${devices[@]}" "$@"
}
# Each node that lacks the image pulls it. If that fails, only the first error of one node is printed.
# shellcheck disable=SC2317
pull_image() {
  podman image exists "$1" || podman pull --quiet "$1" 2>&1 | sed "s/^/$SLURMD_NODENAME: /"
}
# Pull the image on all nodes, then run the command in the other arguments. It runs after slurm.setup, which may
# set a proxy or a registry.
# shellcheck disable=SC2317  # launch calls this function
with_image() {
  local image=$1 output
  shift
  # shellcheck disable=SC2016  # the shell on each node expands $1
  if ! output=$(srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    --export=ALL bash -o pipefail -c 'pull_image "$1"' pull_image "$image" 2>&1); then
    grep -v -m 1 -e level=warning -e '^srun: ' <<< "$output"
    echo "error: image is $image, and not all nodes of the job have it or can pull it."
    printf 'Run podman pull %q on each node; an image that is in no registry must be copied to each node.\n' "$image"
    ln -s "end 4" "$CLUSTERTRAIN_MAIL/verdict"
    exit 4
  fi
  exec "$@"
}
export -f record_signals run_podman pull_image with_image
launch=(bash -c 'with_image "$@"' with_image "$image" "${launch[@]}")

