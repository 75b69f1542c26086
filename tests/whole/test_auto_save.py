"""`checkpoint.every: auto` in a whole run: its saves follow the clock and change no bit of the result."""

import sys

from clustertrain.checkpoints.manifest import names, read_manifest
from commands import ran
from whole_run import FAULTY, ONE_WORKER, of_one_process, same_weights


def test_saves_by_the_measured_stall_change_nothing_and_check_prints_their_cost(make_run):
    sections = {"checkpoint": {"every": "auto", "keep_last": 9}, "failures": {"mtbf": "0.4s"}}
    run = make_run("auto", args={"step_s": 0.2}, **FAULTY, **sections, **ONE_WORKER)

    def checked():
        command = [sys.executable, "-m", "clustertrain.cli", "check", "--no-code", str(run.job_file)]
        return ran(command, code=0).stdout

    assert "checkpoint.every auto: how long training waits for a save is not known yet" in checked()
    run.start().end(0)
    shelf = run.run_dir.checkpoints
    reasons = [read_manifest(shelf, name).reason for name in names(shelf)]
    assert "minutes" in reasons[:-1] and reasons[-1] == "end"
    assert same_weights(run.weights(), of_one_process(run))
    assert "checkpoint.every auto: save every " in checked()
