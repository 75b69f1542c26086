"""Records of a run, as the kit writes them: what a test leaves open has a value that nothing depends on."""

import time

from clustertrain.node.processes import Process
from clustertrain.run_files.records.claim import Claim, RestartClaim
from clustertrain.run_files.records.result import Failure
from clustertrain.run_files.records.scheduler import SchedulerJob

FAR = Process("far/boot/pid:[1]", 7, 1)
"""A process of another machine."""


def sample_claim(process=FAR, **fields):
    given = {"time": 1.0, "world_size": 2, "launcher": "local", **fields}
    return Claim(process.host, process.pid, process.pid_started_ticks, **given)


def sample_restart_claim():
    return RestartClaim("far", 7, time.time())


def sample_failure(**fields):
    given = {"rank": 1, "error": "E", "text": "E: no", "signature": "rank 1 E", **fields}
    return Failure(**given)


def sample_submission(job_id="12", **fields):
    given = {"digest": "0" * 16, "time": 1.0, "place": {}, "output": "/a/b", **fields}
    return SchedulerJob("slurm", job_id, **given)
