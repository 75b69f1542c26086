"""The environment variables of clustertrain: the name of each, who sets it and who reads it.

Code uses the constants in this module; docs/environment.md contains the table. The shell templates and the
Dockerfile contain the names themselves, and a test compares them with this table.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "CLUSTERTRAIN_"
"""The prefix of all names."""

# Set by users.
SITE = "CLUSTERTRAIN_SITE"
RAY = "CLUSTERTRAIN_RAY"

# Set for the user's training code.
CHECKPOINT_DIR = "CLUSTERTRAIN_CHECKPOINT_DIR"
DATA_PREFIX = "CLUSTERTRAIN_DATA_"
ATTEMPT = "CLUSTERTRAIN_ATTEMPT"
RESTART = "CLUSTERTRAIN_RESTART"

# From one process of clustertrain to another.
SUBMISSION = "CLUSTERTRAIN_SUBMISSION"
MAIL = "CLUSTERTRAIN_MAIL"
AT_TIME_LIMIT = "CLUSTERTRAIN_AT_TIME_LIMIT"
NODES = "CLUSTERTRAIN_NODES"
TOKEN = "CLUSTERTRAIN_TOKEN"
HEAD = "CLUSTERTRAIN_HEAD"
PORTS = "CLUSTERTRAIN_PORTS"
CODE = "CLUSTERTRAIN_CODE"
RAY_DIR = "CLUSTERTRAIN_RAY_DIR"
MEMORY_DIR = "CLUSTERTRAIN_MEMORY_DIR"
FORK_SERVER = "CLUSTERTRAIN_FORK_SERVER"
PID = "CLUSTERTRAIN_PID"
ENV = "CLUSTERTRAIN_ENV"
JOB = "CLUSTERTRAIN_JOB"
RAYJOB = "CLUSTERTRAIN_RAYJOB"
NAMESPACE = "CLUSTERTRAIN_NAMESPACE"
POD = "CLUSTERTRAIN_POD"
VERSION = "CLUSTERTRAIN_VERSION"


@dataclass(frozen=True)
class Variable:
    """One row of the table."""

    name: str
    holds: str
    set_by: str
    read_by: str


VARIABLES: tuple[Variable, ...] = (
    Variable(
        SITE,
        "the path of the site file, in place of ~/.config/clustertrain/site.yaml",
        "the user",
        "`clustertrain`",
    ),
    Variable(
        RAY,
        "`stock`: the driver uses Ray's public API alone; `none`: it uses no Ray",
        "the user; `none` by `run --no-ray`",
        "the driver",
    ),
    Variable(
        CHECKPOINT_DIR,
        "the folder, or the s3:// URI, for the checkpoints of a script",
        "the worker",
        "the script",
    ),
    Variable(
        f"{DATA_PREFIX}<NAME>",
        "the local path of the data set of that name",
        "the worker",
        "the script",
    ),
    Variable(
        ATTEMPT,
        "the number of the attempt, from 1",
        "the worker",
        "the script",
    ),
    Variable(
        RESTART,
        "the number of the start of the workers in this attempt, from 0",
        "the worker",
        "the script",
    ),
    Variable(
        SUBMISSION,
        "the snapshot in the storage that the job starts from, as JSON",
        "`clustertrain submit`",
        "the batch script, for the node agents",
    ),
    Variable(
        MAIL,
        "the folder in which the batch script and the head's agent exchange files",
        "the batch script",
        "the head's node agent",
    ),
    Variable(
        AT_TIME_LIMIT,
        "`stop` or `requeue`",
        "the batch script",
        "the head's node agent",
    ),
    Variable(
        NODES,
        "the host names of the job's nodes, with commas between them, the head's first",
        "the batch script; for the driver the head's agent",
        "the node agents, the driver",
    ),
    Variable(
        TOKEN,
        "the secret of the job's Ray cluster; no worker gets it",
        "the batch script",
        "the node agents",
    ),
    Variable(
        HEAD,
        "host:port of Ray's head",
        "the head's node agent",
        "the driver",
    ),
    Variable(
        PORTS,
        "the node's block of ports, such as 20100-20139",
        "the node agent",
        "the driver and the workers, for a script",
    ),
    Variable(
        CODE,
        "the folders of the job's code on this node, with colons between them",
        "the node agent; the pod's manifest",
        "the driver, the workers",
    ),
    Variable(
        RAY_DIR,
        "the private folder of a Ray on one machine",
        "`clustertrain run`",
        "the driver",
    ),
    Variable(
        MEMORY_DIR,
        "the private folder of a run in the shared memory of a node",
        "`clustertrain run`; the node agent; `ray start` of a pod",
        "the workers",
    ),
    Variable(
        FORK_SERVER,
        "the path of the socket of a node's fork server",
        "the process that starts Ray",
        "Ray's workers",
    ),
    Variable(
        PID,
        "the pid of a rank on its node",
        "`clustertrain exec`",
        "your command",
    ),
    Variable(
        ENV,
        "the `env` of the job as JSON, with the values of its references",
        "the process that starts the driver",
        "the driver, which removes it",
    ),
    Variable(
        JOB,
        "the path of the job file in the pod",
        "the pod's manifest",
        "the entrypoint, postStart, preStop",
    ),
    Variable(
        RAYJOB,
        "the name of the RayJob",
        "the pod's manifest",
        "the entrypoint",
    ),
    Variable(
        NAMESPACE,
        "the namespace of the RayJob",
        "the pod's manifest",
        "the entrypoint",
    ),
    Variable(
        POD,
        "the name of the pod",
        "the pod's manifest",
        "the entrypoint, preStop",
    ),
    Variable(
        VERSION,
        "the version of clustertrain that rendered the RayJob",
        "the pod's manifest",
        "the entrypoint",
    ),
)


def variables_markdown() -> str:
    """The table in docs/environment.md."""
    rows = ["| variable | holds | set by | read by |", "|---|---|---|---|"]
    rows += [f"| `{each.name}` | {each.holds} | {each.set_by} | {each.read_by} |" for each in VARIABLES]
    return "\n".join(rows) + "\n"
