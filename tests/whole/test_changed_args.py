"""The args in tables are those with which the shown steps were trained, on two ranks without Ray."""

import json

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.run.streams.history import curve

LOOP = """\
import torch
from clustertrain import session


def train(config):
    s = session.current()
    weight, start = torch.ones(1), 0
    if (state := s.restore()) is not None:
        weight, start = state["weight"], state["step"]
    for step in range(start + 1, config["steps"] + 1):
        weight = weight * (1 - config["lr"])
        s.log(step=step, loss=weight.item())
        s.step_done(step)
    AT_THE_END
"""
SAVES_WHAT_IT_TRAINED = """if start < config["steps"]:
        s.save(step=step, state={"weight": weight})"""
# As in many scripts, whatever is left to train; the evaluation has another loss on each start.
EVALUATES_AND_SAVES = """s.log(step=config["steps"], loss=weight.item() + config["lr"])
    s.save(step=config["steps"], state={"weight": weight})"""


def called(command, *arguments):
    result = CliRunner().invoke(main, [command, *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("at_the_end", "extra"),
    [(SAVES_WHAT_IT_TRAINED, 0.0), (EVALUATES_AND_SAVES, 0.5)],
    ids=["saves", "evaluates"],
)
def test_a_start_that_trains_nothing_changes_no_record(make_run, at_the_end, extra):
    run = make_run("halved", function="loop:train", code=".", args={"lr": 0.5, "steps": 3})
    (run.folder / "loop.py").write_text(LOOP.replace("AT_THE_END", at_the_end))
    run.start("--no-ray").end(0)
    recorded = run.run_dir.local_path(run.run_dir.job_key).read_text()
    loss = 0.5**3 + extra
    changed = ["--set", "args.lr=1.0"]

    refused = run.start("--no-ray", *changed).end(2)
    remedies = [line for line in refused.splitlines() if line.endswith("`")]
    beside = f"run {run.job_file} --set args.lr=1.0 --set name=halved-2"
    assert f"{beside}`" in remedies[0]
    assert [each.rpartition(" ")[2] for each in remedies[1:]] == ["--accept-changes`"]

    output = run.start("--no-ray", *changed, "--accept-changes").end(0)
    assert "halved is already finished; nothing was trained" in output and f"{beside}`" in output
    assert "step        3\n" in output and f"loss        {loss:g}\n" in output
    assert run.run_dir.local_path(run.run_dir.job_key).read_text() == recorded
    (row,) = json.loads(called("ls", run.job_file, "--args", "lr", "--metric", "loss", "--json"))
    assert (row["state"], row["step"], row["args.lr"], row["metrics.loss.last"]) == ("done", 3, 0.5, loss)
    status = called("status", run.job_file)
    assert "step        3\n" in status and f"loss        {loss:g}\n" in status and "changes" not in status
    assert "already finished" in run.start("--no-ray").end(0), "the job of the run is the first one"

    output = run.start("--no-ray", *changed, "--set", "args.steps=4", "--accept-changes").end(0)
    assert "already finished" not in output
    assert [record["step"] for record in curve(run.run_dir) if record["kind"] == "train"][-1] == 4
    (row,) = json.loads(called("ls", run.job_file, "--args", "lr", "--json"))
    assert (row["step"], row["args.lr"]) == (4, "0.5, 1.0")
