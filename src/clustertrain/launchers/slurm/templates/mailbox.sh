# The mailbox is a folder on this node through which this shell and the agent exchange messages (mailbox.py). It
# is in the first folder for temporary files that can be written.
#
# The owner is the process whose end makes the folder useless: if this shell is killed, a later start removes the
# folder (private_folder.py).
owner=$(printf '{"host": "%s/%s/%s", "pid": %s, "pid_started_ticks": %s}' "$(hostname)" \
  "$(cat /proc/sys/kernel/random/boot_id)" "$(readlink /proc/self/ns/pid)" "$$" \
  "$(cut -d ' ' -f 22 "/proc/$$/stat")")
mail='' refused=''
trap '[ -z "$mail" ] || rm -rf "$mail"' EXIT
for temporary in "${TMPDIR:-/tmp}" /tmp /var/tmp /dev/shm; do
  # The name is chosen first: a kill must not leave a folder that this shell does not know.
  mail=$temporary/ct-mail-$(od -An -v -N6 -tx1 /dev/urandom | tr -d ' \n')
  if why=$({ mkdir -m 700 "$mail" && printf '%s' "$owner" > "$mail/owner"; } 2>&1); then break; fi
  rm -rf "$mail"
  mail='' refused+="${why##*$'\n'}"$'\n'
done
if [ -z "$mail" ]; then
  printf 'error: no folder for temporary files can be written on %s, where TMPDIR is "%s":\n%s' \
    "$(hostname)" "${TMPDIR:-}" "$refused"
  echo "Free space there, or let TMPDIR name another folder of the node: slurm.environment: [TMPDIR]"
  exit 3
fi
export CLUSTERTRAIN_MAIL=$mail

