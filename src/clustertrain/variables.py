"""The names of clustertrain's environment variables.

docs/environment.md says what each holds, who sets it and who reads it. Code uses the constants in this
module; the shell templates and the Dockerfile contain the names themselves. A test compares both with that
page.
"""

from __future__ import annotations

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
SPOOL = "CLUSTERTRAIN_SPOOL"
FORK_SERVER = "CLUSTERTRAIN_FORK_SERVER"
PID = "CLUSTERTRAIN_PID"
ENV = "CLUSTERTRAIN_ENV"
JOB = "CLUSTERTRAIN_JOB"
RAYJOB = "CLUSTERTRAIN_RAYJOB"
NAMESPACE = "CLUSTERTRAIN_NAMESPACE"
POD = "CLUSTERTRAIN_POD"
VERSION = "CLUSTERTRAIN_VERSION"
