"""The files of a run: every path, and the processes that write and read each.

folder.py        every path of a run, in one object; the spool of a node
records.py       the contents of its small files, a frozen class for each
recorded_job.py  the job files of a run and of its attempts
attempt_ref.py   a reference to an attempt, as text that one process passes to another
states.py        the states of a run, their causes and exit codes
command_line.py  the command that started a run, for messages that advise the next command
run_address.py   the run that a folder belongs to
admission.py     whether a job may start, and as which attempt
job_diff.py      the changes in a job since the last attempt, and whether its run continues with them
claims.py        which process runs an attempt, and whether it is alive
provenance.py    from what an attempt was started: code, packages, machine
result.py        the result of an attempt
retry_budget.py  the failures in a row after which a run ends
best.py          the best checkpoint of a run
save_interval.py  how often to save
submission.py    a job that is submitted to a scheduler, and how a node finds its snapshot
snapshot.py      the code of a job at its submission
working_folder.py  where the code of a submitted run works, and the files that code leaves beside itself
rendezvous.py    the files by which the nodes of one start find each other
streams/         files that grow while a run trains: events, metrics, logs
"""

import importlib
import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    """This folder, which `clustertrain.run(job)` calls: the public function has the same name, and Python
    binds the folder to it as soon as a file in it is imported."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return importlib.import_module("clustertrain.api").run(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
