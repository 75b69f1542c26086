#!/bin/bash
# PID 1 of a Grid Engine of one host, in namespaces of its own (net, pid, mount, uts, ipc).
#   gridengine_host.sh FOLDER < PIPE
# All of it lives as long as the other end of PIPE is open. The cell and the spool of the machine stay as they are:
# here they are copies in FOLDER.
set -eu
folder=$1 slots=2
host=ge1
export SGE_ROOT=/var/lib/gridengine SGE_CELL=default

hostname "$host"
ip link set lo up
ip address add 198.18.0.1/32 dev lo # the daemons refuse a host whose name leads to localhost
printf '127.0.0.1 localhost\n198.18.0.1 %s\n' "$host" > "$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts
cp -a /var/lib/gridengine "$folder/root"
cp -a /var/spool/gridengine "$folder/spool"
mount --bind "$folder/root" /var/lib/gridengine
mount --bind "$folder/spool" /var/spool/gridengine
rm -f /var/spool/gridengine/spooldb/__db.*
echo "$host" > "$SGE_ROOT/default/common/act_qmaster"
chmod a+rx "$folder"

try() { # COMMAND...: until it works
  for _ in {1..300}; do
    if "$@"; then return; fi
    sleep 0.1
  done > "$folder/tried" 2>&1
  cat "$folder/tried"
  exit 1
}
sge_qmaster
try qconf -sh
for option in -ah -as; do qconf "$option" "$host"; done
cat > "$folder/exec" << END
hostname $host
load_scaling NONE
complex_values slots=$slots,gpu=2
user_lists NONE
xuser_lists NONE
projects NONE
xprojects NONE
usage_scaling NONE
report_variables NONE
END
qconf -sc | { cat; echo "gpu gpu INT <= YES JOB 0 0"; } > "$folder/complexes"
qconf -Mc "$folder/complexes"
qconf -Ae "$folder/exec"
# The scheduler looks at once at a job that comes or ends, and the host reports every second.
qconf -ssconf | sed -e 's/^schedule_interval .*/schedule_interval 0:0:1/' \
  -e 's/^flush_submit_sec .*/flush_submit_sec 1/' -e 's/^flush_finish_sec .*/flush_finish_sec 1/' > "$folder/sched"
qconf -Msconf "$folder/sched"
qconf -sconf | sed -e 's/^load_report_time .*/load_report_time 00:00:01/' -e 's/^min_\(.\)id .*/min_\1id 0/' > "$folder/global"
qconf -Mconf "$folder/global"
cat > "$folder/pe" << END
pe_name smp
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule \$pe_slots
control_slaves FALSE
job_is_first_task TRUE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
END
qconf -Ap "$folder/pe"
qconf -sq | sed -e 's/^qname .*/qname all.q/' -e "s/^hostlist .*/hostlist $host/" -e "s/^slots .*/slots $slots/" \
  -e 's/^shell .*/shell \/bin\/bash/' -e 's/^pe_list .*/pe_list smp/' -e 's/^rerun .*/rerun TRUE/' \
  -e 's/^load_thresholds .*/load_thresholds NONE/' -e 's/^notify .*/notify 00:00:20/' > "$folder/queue"
qconf -Aq "$folder/queue"
sge_execd
try bash -c 'qhost -h ge1 | grep -q "ge1 .*lx"'
echo up
exec >&2
read -r _ || true
