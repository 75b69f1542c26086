"""The names of clustertrain's environment variables.

Code uses these constants; the shell templates and the Dockerfile contain the names themselves. A test
compares both with docs/reference/environment.md.
"""

from __future__ import annotations

PREFIX = "CLUSTERTRAIN_"
"""The prefix of all names."""

SITE = "CLUSTERTRAIN_SITE"
"""The path of the only site file that is read, in place of ~/.config/clustertrain/site.yaml.

Set by the user; read by `clustertrain`.
"""

RAY = "CLUSTERTRAIN_RAY"
"""`none`: the driver uses no Ray.

Set by `run --no-ray`; read by the driver.
"""

CHECKPOINT_DIR = "CLUSTERTRAIN_CHECKPOINT_DIR"
"""The folder, or the s3:// URI, for the checkpoints of a script.

Set by the worker; read by the script.
"""

DATA_PREFIX = "CLUSTERTRAIN_DATA_"
"""The local path of the data set of that name.

Set by the worker; read by the script.
"""

ATTEMPT = "CLUSTERTRAIN_ATTEMPT"
"""The number of the attempt, from 1.

Set by the worker; read by the script.
"""

RESTART = "CLUSTERTRAIN_RESTART"
"""The number of the start of the workers in this attempt, from 0.

Set by the worker; read by the script.
"""

METRICS = "CLUSTERTRAIN_METRICS"
"""The file to which `clustertrain.session` appends what rank 0 logs.

Set by the worker of rank 0; read by `clustertrain.session`.
"""

REQUESTS = "CLUSTERTRAIN_REQUESTS"
"""The file in memory that shows a script a request to stop.

Set by the worker; read by `clustertrain.session`.
"""

SUBMISSION = "CLUSTERTRAIN_SUBMISSION"
"""The snapshot in the storage that the job starts from.

Set by `clustertrain submit`; read by the batch script, for the node agents.
"""

AFTER = "CLUSTERTRAIN_AFTER"
"""The jobs before it in a sweep.

Set by `clustertrain submit`; read by a run in the background.
"""

MAIL = "CLUSTERTRAIN_MAIL"
"""The folder in which the batch script and the head's agent exchange files.

Set by the batch script; read by the head's node agent.
"""

AT_TIME_LIMIT = "CLUSTERTRAIN_AT_TIME_LIMIT"
"""`stop` or `requeue`.

Set by the batch script; read by the head's node agent.
"""

NODES = "CLUSTERTRAIN_NODES"
"""The host names of the job's nodes, with commas between them, the head's first.

Set by the batch script; for the driver the head's agent; read by the node agents, the driver.
"""

TOKEN = "CLUSTERTRAIN_TOKEN"
"""The secret of the job's Ray cluster; no worker gets it.

Set by the batch script; read by the node agents.
"""

HEAD = "CLUSTERTRAIN_HEAD"
"""Host:port of Ray's head.

Set by the head's node agent; read by the driver.
"""

PORTS = "CLUSTERTRAIN_PORTS"
"""The node's block of ports, such as 20100-20139.

Set by the node agent; read by the driver and the workers, for a script.
"""

CODE = "CLUSTERTRAIN_CODE"
"""The folders of the submitted code that this node has unpacked, with colons between them.

Set by the node agent; the pod's manifest; read by the driver, the workers.
"""

RAY_DIR = "CLUSTERTRAIN_RAY_DIR"
"""The private folder of a Ray on one machine.

Set by `clustertrain run`; read by the driver.
"""

MEMORY_DIR = "CLUSTERTRAIN_MEMORY_DIR"
"""The private folder of a run in the shared memory of a node.

Set by `clustertrain run`; the node agent; `ray start` of a pod; read by the workers.
"""

SPOOL = "CLUSTERTRAIN_SPOOL"
"""The folder in which a node keeps the streams until they are sent to S3.

Set by `clustertrain run`; the node agent; `ray start` of a pod; read by the driver, the workers.
"""

FORK_SERVER = "CLUSTERTRAIN_FORK_SERVER"
"""The path of the socket of a node's fork server.

Set by the process that starts Ray; read by Ray's workers.
"""

PID = "CLUSTERTRAIN_PID"
"""The pid of a rank on its node.

Set by `clustertrain exec`; read by your command.
"""

ENV = "CLUSTERTRAIN_ENV"
"""The `env` of the job as JSON, with the values of its references.

Set by the process that starts the driver; read by the driver, which removes it.
"""

JOB = "CLUSTERTRAIN_JOB"
"""The path of the job file in the pod.

Set by the pod's manifest; read by the entrypoint, postStart, preStop.
"""

RAYJOB = "CLUSTERTRAIN_RAYJOB"
"""The name of the RayJob.

Set by the pod's manifest; read by the entrypoint.
"""

NAMESPACE = "CLUSTERTRAIN_NAMESPACE"
"""The namespace of the RayJob.

Set by the pod's manifest; read by the entrypoint.
"""

POD = "CLUSTERTRAIN_POD"
"""The name of the pod.

Set by the pod's manifest; read by the entrypoint, preStop.
"""

VERSION = "CLUSTERTRAIN_VERSION"
"""The version of clustertrain that rendered the RayJob.

Set by the pod's manifest; read by the entrypoint.
"""
