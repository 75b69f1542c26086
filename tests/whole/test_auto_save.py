"""`checkpoint.every: auto` in a whole run: its saves follow the clock and change no bit of the result."""

from clustertrain.checkpoints.manifest import names, read_manifest
from whole_run import FAULTY, ONE_WORKER, of_one_process, same_weights


def test_saves_by_the_measured_stall_change_nothing(make_run):
    sections = {"checkpoint": {"every": "auto", "keep_last": 9}, "failures": {"mtbf": "0.4s"}}
    run = make_run("auto", args={"step_s": 0.2}, **FAULTY, **sections, **ONE_WORKER)
    run.start().end(0)
    shelf = run.run_dir.checkpoints
    reasons = [read_manifest(shelf, name).reason for name in names(shelf)]
    assert "minutes" in reasons[:-1] and reasons[-1] == "end"
    assert same_weights(run.weights(), of_one_process(run))
