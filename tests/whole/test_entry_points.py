"""A function with its own loop, an unchanged script, and an existing Ray cluster."""

import re
import shutil
import signal
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.node.network import interface_variables
from support.mounts import apart
from support.ray_clusters import end_ray, start_ray
from support.waiting import wait_until
from support.whole_run import ONE_WORKER


# In CI test_python.py stops a run with Ray.
@pytest.mark.parametrize(
    "start", [pytest.param("with Ray", marks=pytest.mark.nightly), "without Ray"], indirect=True
)
def test_a_function_stops_on_request_and_continues(make_run, start, tmp_path):
    fast = tmp_path / "fast"
    args = {"steps": 300, "step_s": 0.2, "fast": str(fast)}
    run = make_run("function", function="own_loop:train", args=args, **ONE_WORKER)
    start(run).wait_for_step(5)
    stop = CliRunner().invoke(main, ["stop", str(run.job_file)])
    assert stop.exit_code == 0, stop.output
    assert "stopped (user)" in run.end(75)
    stopped_at = run.result.step
    fast.touch()
    start(run).end(0)
    assert f"starting at step {stopped_at} of 300 with 1 workers" in run.rank_log(0)
    assert run.result.step == 300
    logs = CliRunner().invoke(main, ["logs", str(run.job_file), "--rank", "0"])
    assert "starting at step" in logs.output


# In CI test_own_loops.py and test_script_session.py have scripts without Ray.
@pytest.mark.parametrize(
    "start", ["with Ray", pytest.param("without Ray", marks=pytest.mark.nightly)], indirect=True
)
def test_a_script_gets_the_environment_of_torchrun_and_its_failure_is_reported(make_run, start):
    run = make_run(
        "script",
        script="torchrun_script.py",
        args=["--fail-at-first", 0.1],
        resume_args=["--resume"],
        failures={"retries": 1},
    )
    output = start(run).end(0)
    assert "torchrun_script.py ended with exit code 7 on rank 1" in output
    assert "| the disk of rank 1 is full of eels" in output
    assert next(e for e in run.events if e["kind"] == "worker_died")["exit_code"] == 7
    for rank in (0, 1):
        log = run.rank_log(rank)
        assert f"RANK={rank} LOCAL_RANK={rank} WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0" in log
        assert "TORCHELASTIC_RESTART_COUNT=0 CUDA_VISIBLE_DEVICES= " in log, "a job without GPUs sees none"
        assert "TORCHELASTIC_RESTART_COUNT=1" in log
        assert "sum over 2 ranks: 3; ray: False; args: ['--fail-at-first', '0.1']\n" in log
        assert "args: ['--fail-at-first', '0.1', '--resume']\n" in log
    assert "restarting the workers (1 of at most 1)\n" in output
    assert "the script has files in its checkpoint folder: its arguments end with --resume" in output
    assert "step" not in output.partition("rank 0 prints here")[2], "clustertrain knows no steps of a script"


# In CI test_script_session.py kills a script without Ray.
@pytest.mark.parametrize(
    "options", [pytest.param(["--no-ray"], marks=pytest.mark.nightly), []], ids=["without Ray", "Ray"]
)
def test_a_killed_script_starts_again_and_loses_nothing(make_run, options):
    def losses(name, **keys):
        run = make_run(name, script="resuming_script.py", args=[], **keys)
        run.start(*options).end(0)
        (died,) = (event for event in run.events if event["kind"] == "worker_died")
        assert (died["rank"], died["signal"]) == (1, 9)
        return [line for line in run.rank_log(0).splitlines() if line.startswith("step ")]

    of_worker = losses("worker")
    assert [line.split()[1] for line in of_worker] == [str(step) for step in range(1, 11)]
    assert losses("own", interpreter=sys.executable) == of_worker


def test_a_script_is_seen_at_work_and_what_it_loses_at_a_stop_is_no_failure(make_run):
    run = make_run("bar", script="bar.py", args=[], failures={"grace": "20s"})
    run.start().wait_for_event("group_started")
    wait_until(lambda: "5/600" in run.rank_log(0), run.patience_s)
    run.process.send_signal(signal.SIGINT)
    output = run.end(75)
    assert f"clustertrain logs {run.job_file} --rank 1`" in output
    assert "rank 0 begins\n" in output
    assert "rank 1 begins" not in output
    assert output.count("/600") == 2, "the bar in its last state: when it was saved, and at the end"
    assert "stopping: sent SIGTERM to the script; 20 s until SIGKILL\n" in output
    assert "saved\n" in output
    assert "gloo/transport" in run.rank_log(0), "rank 1 ended first"
    for word in ("restart", "warning"):
        assert word not in output, output
    assert "The script has files in its checkpoint folder.\ncontinue: " in output
    assert (run.result.cause, run.result.step, run.result.restarts) == ("interrupt", None, 0)


def test_a_module_of_several_folders_in_an_environment_of_its_own_gets_its_paths_as_arguments(
    make_run, tmp_path
):
    """The environment has no package: neither torch nor Ray."""
    venv.create(tmp_path / "environment")
    files = {
        "project/package/__init__.py": "",
        "project/package/train.py": """
            import os, sys
            from pathlib import Path
            from .names import project
            from names import lib
            assert (project, lib) == ("project", "lib")
            assert not any("site-packages" in path and "environment" not in path for path in sys.path)
            out = Path(sys.argv[2])
            print(sys.prefix, os.getcwd(), Path(sys.argv[1], "words.txt").read_text(), sys.argv[3:])
            print(os.environ["WORDS"], os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"].isdigit())
            if not (out / "done").exists():
                (out / "done").touch()
                sys.exit("no more words")
            """,
        "project/package/names.py": "project = 'project'",
        "lib/names.py": "lib = 'lib'",
        "data/words.txt": "eels",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    run = make_run(
        "module",
        module="package.train",
        code=[str(tmp_path / "project"), str(tmp_path / "lib")],
        interpreter=str(tmp_path / "environment"),
        args=["${CLUSTERTRAIN_DATA_WORDS}", "${CLUSTERTRAIN_CHECKPOINT_DIR}", "${now:%H}"],
        resume_args=["${CLUSTERTRAIN_ATTEMPT}.${CLUSTERTRAIN_RESTART}"],
        data={"words": {"uri": str(tmp_path / "data")}},
        env={"WORDS": "in ${CLUSTERTRAIN_DATA_words}"},
        failures={"retries": 1},
        **ONE_WORKER,
    )
    output = run.start().end(0)
    assert "package.train ended with exit code 1 on rank 0" in output
    log = run.rank_log(0)
    where = f"{tmp_path}/environment {tmp_path}/project eels"
    assert f"{where} ['${{now:%H}}']\nin {tmp_path}/data 1 True\nno more words" in log
    assert f"{where} ['${{now:%H}}', '1.1']\n" in log


# tests/slurm/test_bad_nodes.py has such a node in CI.
@pytest.mark.nightly
@pytest.mark.faults
def test_a_node_that_sees_another_file_system_at_the_path_is_found_before_training(
    make_run, cluster, tmp_path
):
    """Two nodes of one cluster: the second, in a mount namespace of its own, has nothing but memory there."""
    storage = tmp_path / "runs"
    storage.mkdir()
    environment = {name: value for name, value in cluster.items() if name != "RAY_ADDRESS"}
    second = start_ray(
        Path(cluster["RAY_AUTH_TOKEN_PATH"]).parent,
        "second",
        environment,
        *(f"--address={cluster['RAY_ADDRESS']}", "--node-ip-address=127.0.0.2"),
        within=apart(f'mount -t tmpfs none "{storage}"'),
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


@pytest.fixture
def libraries(tmp_path):
    """A folder with two libraries."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "answer.c").write_text("int answer(void) { return 42; }\n")
    for name in ("early", "answer"):
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", f"lib{name}.so", "answer.c"], cwd=folder, check=True)
    return folder


def test_a_cluster_that_is_there_is_used_and_another_run_beside_it_is_not_disturbed(
    make_run, cluster, libraries
):
    """Its nodes were started without the job's `env`, which a worker's process has all the same when it
    starts: the dynamic loader reads some of it only then."""
    env = {
        "LD_PRELOAD": str(libraries / "libearly.so"),
        "LD_LIBRARY_PATH": str(libraries),
        "PYTHONHASHSEED": "5",
        "DOLLAR": "a$$HOME",
        "PYTHONPATH": "/nowhere",
    }
    interface = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    args = {
        "names": [*env, *interface, "CUDA_VISIBLE_DEVICES"],
        "preloaded": "libearly.so",
        "library": "libanswer.so",
    }
    run = make_run("clustered", function="started_with:train", args=args, env=env, **ONE_WORKER)
    beside = make_run("beside", script="torchrun_script.py", args=[], **ONE_WORKER)  # with its own Ray
    run.start(**cluster)
    beside.start()
    assert "done (finished)" in run.end(0, all_gone=False)
    assert "done (finished)" in beside.end(0, all_gone=False)
    log = run.rank_log(0)
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONHASHSEED"):
        assert f"{name}: {env[name]!r} at the start, {env[name]!r} now\n" in log
    assert "DOLLAR: None at the start, 'a$HOME' now\n" in log, "Ray would expand it"
    assert "PYTHONPATH: '/nowhere' at the start" not in log, "Ray's own Python does not start with it"
    (address,) = run.attempt.newest_restart().plan.read().addresses
    for name, value in interface_variables(address).items():
        assert f"{name}: None at the start, {value!r} now\n" in log
    assert re.search(r"^CUDA_VISIBLE_DEVICES: .*, '' now$", log, re.M), "a job without GPUs sees none"
    assert "preloaded: True\nfound by its name: 42\n" in log
    addresses = [next(e for e in r.events if e["kind"] == "ray_started")["address"] for r in (run, beside)]
    assert addresses == [cluster["RAY_ADDRESS"], "local"]
    wait_until(lambda: not workers_of(run), 60, lambda: workers_of(run))


def workers_of(run):
    return [each for each in run.left(0).values() if "ray::Ray" in each or "ray::Train" in each]


@pytest.mark.nightly  # in CI: worker/test_process_group.py, with real processes
def test_a_process_group_that_cannot_be_made_is_a_failure_of_the_workers(make_run):
    """It is counted and reported as any other, and not left to Ray Train, which would end the run."""
    run = make_run(
        "unconnected",
        function="own_loop:train",
        args={"steps": 1, "step_s": 0},
        env={"GLOO_SOCKET_IFNAME": "nosuch0"},
        failures={"retries": 1},
        **ONE_WORKER,
    )
    output = run.start().end(1)
    assert "restarting the workers (1 of at most 1" in output
    assert run.result.state == "failed"
    assert "nosuch0" in run.result.text
