"""The unchanged scripts: under torchrun, and each under clustertrain on two workers."""

import os
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from support.commands import ran
from support.example_modules import clustertrain

EXAMPLE = Path(__file__).parents[2] / "examples" / "scripts"


@pytest.mark.run
def test_the_script_runs_under_plain_torchrun(tmp_path):
    for _ in range(3):
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
        environment = {**os.environ, "TMPDIR": str(tmp_path)}  # torchrun leaves its own files behind
        done = ran([*torchrun, EXAMPLE / "train.py", "--epochs", "1"], env=environment)
        # torch 2.13: threads of gloo outlive the process group, and now and then one aborts an exit that has
        # nothing left to do. That is neither the script's nor ours.
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    assert "on 2 ranks" in done.stdout


def run(tmp_path, job_file, *sets):
    """Runs a job of the example; returns what it printed, and what the worker 1 printed."""
    sets = [f"storage={tmp_path / 'runs'}", "resources.workers=2", "resources.cpus_per_worker=0.5", *sets]
    options = [text for each in sets for text in ("--set", each)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = clustertrain("run", str(EXAMPLE / job_file), *options, env=environment)
    folder = next((tmp_path / "runs").iterdir())
    logs = CliRunner().invoke(main, ["logs", str(folder), "--rank", "1"])
    assert logs.exit_code == 0, logs.output
    return done.stdout, logs.output


def losses_of(output):
    return [float(loss) for loss in re.findall(r"mean loss (\d+\.\d{4})", output)]


# tests/whole/test_entry_points.py starts a torchrun script; below, plain torchrun runs this one.
@pytest.mark.nightly
@pytest.mark.run
def test_the_torchrun_script_learns_on_two_workers(tmp_path):
    output, other = run(tmp_path, "job.yaml", "args=[--epochs, '2']")
    assert "on 2 ranks" in output
    first, last = losses_of(output)
    assert last < first
    assert "mean loss" not in other, "rank 1 prints into a log of its own"


@pytest.mark.nightly  # in CI: such a script without Ray, in whole/test_migrate.py
@pytest.mark.run
def test_a_script_that_spawns_has_a_worker_per_node(tmp_path):
    """Each of the two workers is one node of the script's arithmetic, with two ranks."""
    output, other = run(tmp_path, "spawn.yaml", "args=[--nprocs, '2', --epochs, '2']")
    first, last = losses_of(output)
    assert last < first
    # The two ranks of a worker write into one pipe: a line may have the beginning of the next one at its end.
    done = sorted(re.findall(r"rank \d of 4 is done, on node \d of 2", output + other))
    assert done == [f"rank {rank} of 4 is done, on node {rank // 2} of 2" for rank in range(4)]
