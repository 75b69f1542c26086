"""A script with `clustertrain.session`: its lines are the metrics of the run, and its ranks stop together."""

import json
import os
import re
import signal
import subprocess
import sys
import venv

import pytest
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

import clustertrain
from clustertrain.node import variables
from clustertrain.node.waiting import wait_until
from clustertrain.run_files.streams.events import read_events
from support.commands import ran
from support.example_modules import clustertrain as command
from support.whole_run import CODE, ONE_WORKER

STEPS, KILLED_AFTER = 40, 7
SCRIPT = {"script": "session_script.py"}


def test_its_lines_are_the_curve_of_the_run_and_a_stop_comes_after_the_same_step(make_run, tmp_path):
    data = {"images": {"uri": str(tmp_path)}}
    run = make_run("logs", **SCRIPT, args=["--lr", "0.5"], data=data, failures={"retries": 1, "grace": "20s"})
    run.start("--no-ray")
    stream = run.run_dir.attempt(1)
    wait_until(lambda: len(read_events(run.run_dir, stream.restart(1).metrics_key)) > 4, run.patience_s, 0.02)
    run.process.send_signal(signal.SIGINT)
    output = run.end(75)
    killed = [
        each["step"] for each in read_events(run.run_dir, stream.restart(0).metrics_key) if each["loss"]
    ]
    assert killed == [*range(1, KILLED_AFTER + 1)], "nothing is lost with a killed script"
    assert "stopping: session.stop_requested() is True in the script; 20 s until SIGKILL\n" in output
    assert "SIGTERM" not in output
    assert "data ['images'], after 5\n" in output
    stops = {int(each) for rank in (0, 1) for each in re.findall(r"stops after (\d+)", run.rank_log(rank))}
    (stopped,) = stops
    assert (run.result.state, run.result.step, run.result.exit_code) == ("stopped", stopped, 75)
    assert json.loads(command("status", str(run.job_file), "--json").stdout)["step"] == stopped

    output = run.start("--no-ray").end(0)
    assert f"data ['images'], after {stopped}\n" in output
    assert "evaluated at step 40: accuracy 0.4\n" in output
    curve = clustertrain.open(run.job_file).metrics()
    lines = [each for each in curve if each["kind"] == "train"]
    assert [(each["step"], each["loss"]) for each in lines] == [
        (step, pytest.approx(1 / step)) for step in range(1, STEPS + 1)
    ], "those of rank 0; steps 6 and 7 were repeated"
    assert [each["accuracy"] for each in curve if each["kind"] == "eval"] == [n / 20 for n in range(1, 9)]
    (row,) = json.loads(
        command("ls", str(run.job_file), "--args", "lr", "--metric", "loss:min,accuracy:max", "--json").stdout
    )
    values = [row[f"metrics.{name}"] for name in ("loss.best", "accuracy.last")]
    assert (row["step"], row["args.lr"], *values) == (40, 0.5, pytest.approx(1 / 40), 0.4)
    board = EventMultiplexer().AddRunsFromDirectory(run.run_dir.uri).Reload()
    (name,) = board.Runs()
    assert [each.step for each in board.Tensors(name, "train/loss")] == [*range(1, STEPS + 1)]
    assert board.Tensors(name, "eval/accuracy")[-1].tensor_proto.float_val[0] == pytest.approx(0.4)


def test_the_same_script_runs_under_torchrun(tmp_path):
    own = {name: text for name, text in os.environ.items() if not name.startswith(variables.PREFIX)}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = ran(
        [*torchrun, str(CODE / "session_script.py")],
        code=0,
        cwd=tmp_path,
        env={**own, "TMPDIR": str(tmp_path)},
    )
    # Without the ends of the lines: two processes write into one pipe, a text and then its end.
    assert done.stdout.count("data [], after 0") == done.stdout.count(f"ended after {STEPS}") == 2
    assert (tmp_path / "checkpoints" / "last.txt").read_text() == "40"


LOGS = """
from clustertrain import session
for step in range(1, 4): session.log(step=step, loss=step / 4)
print(session.stop_requested())
"""


def test_another_interpreter_is_told_how_to_import_it(make_run, tmp_path):
    venv.create(tmp_path / "environment")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(LOGS)
    paths = {"code": str(tmp_path / "code"), "interpreter": str(tmp_path / "environment")}
    run = make_run("lacks", script="train.py", **paths, **ONE_WORKER)
    output = run.start("--no-ray").end(1)
    assert "train.py:2: ModuleNotFoundError: No module named 'clustertrain'\n" in output
    assert run.result.restarts == 0
    (advice,) = {line.partition("To import it there: ")[2] for line in output.splitlines()} - {""}
    subprocess.run(advice, shell=True, check=True)
    run.start("--no-ray").end(0)
    assert (run.result.step, run.result.metrics["loss"]) == (3, 0.75)
