"""What the SLURM of a test's cluster is told: as quick to notice and to schedule as SLURM can be made,
otherwise like a site that shares its nodes and preempts.

Measured on two busy cores: a node that crashes is missed after 14 to 18 s (SlurmdTimeout=10; less gains
nothing, for SLURM asks again and again before it believes it); a requeued job runs again 6 s later, or 14 s
when the node had the batch shell, whose absence the other nodes take their time to accept.
"""

import os
from collections.abc import Mapping
from pathlib import Path

GPUS_PER_NODE = 2
_SETTINGS = {
    "ClusterName": "test",
    "SlurmUser": "root",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core_Memory",
    "SlurmdParameters": "config_overrides",  # a node has the CPUs that this file says
    "GresTypes": "gpu",
    "PropagateResourceLimits": "NONE",
    "EnforcePartLimits": "ALL",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "SchedulerParameters": "batch_sched_delay=0,sched_min_interval=100000,sched_interval=1,bf_interval=1",
    "ReturnToService": 2,
    "KillWait": 10,
    "MinJobAge": 300,
    "SlurmdTimeout": 10,
    "MessageTimeout": 5,
    "TCPTimeout": 1,
    "GetEnvTimeout": 20,
    "SlurmctldTimeout": 30,
}
_PARTITIONS = {
    "gpu": "Default=YES",
    "short": "MaxTime=10",
    "high": "PriorityTier=100 PreemptMode=OFF",
    "low": "PreemptMode=REQUEUE GraceTime=15",
}


def write_configuration(
    folder: Path, controller: str, nodes: Mapping[str, str], settings: Mapping[str, object]
) -> None:
    """slurm.conf and what stands beside it, into folder/etc. `controller` and the values of `nodes` are
    addresses; `settings` go before those of this file.
    """
    etc = folder / "etc"
    for gpu in range(GPUS_PER_NODE):
        os.mknod(etc / f"gpu{gpu}", 0o20666, os.makedev(1, 3))  # a plain file would be refused
    (etc / "gres.conf").write_text(f"Name=gpu File={etc}/gpu[0-{GPUS_PER_NODE - 1}]\n")
    (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # is not used; v2's looks for systemd

    own = {
        "SlurmctldHost": f"controller({controller})",
        # A requeued job waits for a second longer than this; SLURM takes less than 5 for its default, 120.
        "AuthInfo": f"socket={folder}/munge/socket,cred_expire=5",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd-%n.pid",
        "SlurmctldLogFile": f"{folder}/log/slurmctld",
        "SlurmdLogFile": f"{folder}/log/slurmd-%n",
    }
    lines = [f"{name}={value}" for name, value in (_SETTINGS | own | settings).items()]
    lines += [f"NodeName=DEFAULT CPUs=4 RealMemory=6000 Gres=gpu:{GPUS_PER_NODE}"]
    lines += [f"NodeName={node} NodeAddr={address}" for node, address in nodes.items()]
    lines += [f"PartitionName=DEFAULT Nodes={','.join(nodes)} DefMemPerCPU=500"]
    lines += [f"PartitionName={name} {options}" for name, options in _PARTITIONS.items()]
    (etc / "slurm.conf").write_text("\n".join(lines) + "\n")
