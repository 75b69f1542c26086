"""A function with its own loop, an unchanged script, and an existing Ray cluster."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from whole_run import ONE_WORKER


def rank_log(run, rank):
    return next(run.attempt.path.glob(f"logs/*/rank-{rank}.log")).read_text()


def test_a_function_stops_on_request_and_continues(make_run):
    run = make_run("function", function="own_loop:train", args={"steps": 30, "step_s": 0.2}, **ONE_WORKER)
    run.start().wait_for_step(5)
    stop = CliRunner().invoke(main, ["stop", str(run.job_file)])
    assert stop.exit_code == 0, stop.output
    assert "stopped (user)" in run.end(75)
    stopped_at = run.result.step
    run.start().end(0)
    assert f"starting at step {stopped_at} of 30 with 1 workers" in rank_log(run, 0)
    assert run.result.step == 30
    logs = CliRunner().invoke(main, ["logs", str(run.job_file), "--rank", "0"])
    assert "starting at step" in logs.output


def test_a_script_gets_the_environment_of_torchrun_and_its_failure_is_reported(make_run):
    run = make_run(
        "script",
        script="torchrun_script.py",
        args=["--fail-at-first", 0.1],
        resume_args=["--resume"],
        failures={"retries": 1},
    )
    output = run.start().end(0)
    assert "torchrun_script.py ended with exit code 7 on rank 1" in output
    assert "| the disk of rank 1 is full of eels" in output
    assert next(e for e in run.events if e["kind"] == "worker_died")["exit_code"] == 7
    for rank in (0, 1):
        log = rank_log(run, rank)
        assert f"RANK={rank} LOCAL_RANK={rank} WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0" in log
        assert "TORCHELASTIC_RESTART_COUNT=0" in log
        assert "TORCHELASTIC_RESTART_COUNT=1" in log
        assert "sum over 2 ranks: 3; ray: False; args: ['--fail-at-first', '0.1']\n" in log
        assert "args: ['--fail-at-first', '0.1', '--resume']\n" in log
    assert "the script left a checkpoint: its arguments end with --resume" in output


def start_ray(folder, name, environment, *arguments, within=()):
    """A node of a Ray cluster under a guardian, which ends it whatever Ray does about it; returns it when the
    node is up. `within`: a command that the node runs in."""
    log = Path(folder) / f"{name}.log"
    ray = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--object-store-memory=100000000"]
    guardian = subprocess.Popen(
        [
            *(sys.executable, "-m", "clustertrain.supervise.guardian", f"{folder}/{name}", str(log)),
            *(*within, *ray, "--num-cpus=2", *arguments),
        ],
        stdin=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    ends = time.monotonic() + 90
    while not log.exists() or "Ray runtime started" not in log.read_text():
        assert time.monotonic() < ends and guardian.poll() is None, log.read_text()
        time.sleep(0.05)
    return guardian


def end_ray(guardian):
    guardian.stdin.close()
    guardian.wait(10)


@pytest.fixture
def cluster():
    """A Ray cluster of the test's own, with a token; yields the environment that reaches it."""
    with tempfile.TemporaryDirectory(prefix="ct-test-") as folder:
        token = Path(folder) / "token"
        token.write_text("0123456789abcdef" * 4)
        token.chmod(0o600)
        environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        port = 20000 + os.getpid() % 10000
        head = ["--head", f"--port={port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false"]
        guardian = start_ray(folder, "ray", environment, *head, f"--temp-dir={folder}/ray")
        yield {**environment, "RAY_ADDRESS": f"127.0.0.1:{port}"}
        end_ray(guardian)


@pytest.mark.faults
def test_a_node_that_sees_another_file_system_at_the_path_is_found_before_training(
    make_run, cluster, tmp_path
):
    """Two nodes of one cluster: the second, in a mount namespace of its own, has nothing but memory there."""
    storage = tmp_path / "runs"
    storage.mkdir()
    private = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*private, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespaces for this user")
    environment = {name: value for name, value in cluster.items() if name != "RAY_ADDRESS"}
    second = start_ray(
        Path(cluster["RAY_AUTH_TOKEN_PATH"]).parent,
        "second",
        environment,
        *(f"--address={cluster['RAY_ADDRESS']}", "--node-ip-address=127.0.0.2"),
        within=[*private, "sh", "-c", f'mount -t tmpfs none "{storage}" && exec "$@"', "sh"],
    )
    try:
        run = make_run(
            "torn-apart",
            task="faulty:Faulty",
            train={"epochs": 1, "batch_size": 4},
            resources={"workers": 2, "cpus_per_worker": 2},  # one fits each node
        )
        output = run.start(**cluster).end(4, all_gone=False)
        assert "reads nothing there after" in output
        assert "this path is another file system on one of the two" in output
        assert run.result.cause == "data"
    finally:
        end_ray(second)


def test_a_cluster_that_is_there_is_used_and_another_run_beside_it_is_not_disturbed(make_run, cluster):
    run = make_run("clustered", script="torchrun_script.py", args=[], **ONE_WORKER)
    beside = make_run("beside", script="torchrun_script.py", args=[], **ONE_WORKER)  # with its own Ray
    run.start(**cluster)
    beside.start()
    assert "done (finished)" in run.end(0, all_gone=False)
    assert "done (finished)" in beside.end(0, all_gone=False)
    addresses = [next(e for e in r.events if e["kind"] == "ray_started")["address"] for r in (run, beside)]
    assert addresses == [cluster["RAY_ADDRESS"], "local"]
    ends = time.monotonic() + 10
    while any("ray::Ray" in command or "ray::Train" in command for command in run.left(0).values()):
        assert time.monotonic() < ends, run.left(0)
