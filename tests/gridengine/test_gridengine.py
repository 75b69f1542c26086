"""The launcher of examples/launcher_gridengine on a real Grid Engine."""

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from clusters.gridengine import GridEngine, why_not
from clustertrain.errors import ClusterError
from clustertrain.launcher import Sent
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.streams.history import events_of_attempt
from support.commands import ran
from support.waiting import wait_until
from support.whole_run import CODE

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "launcher_gridengine"
ONE = {"workers": 1, "cpus_per_worker": 1}
pytestmark = [pytest.mark.gridengine, pytest.mark.timeout(600)]


def install(folder):
    """The example as pip installs it: the module and its metadata on the path."""
    folder.mkdir()
    shutil.copy(EXAMPLE / "clustertrain_gridengine.py", folder)
    info = folder / "clustertrain_gridengine-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: clustertrain-gridengine\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        "[clustertrain.launchers]\ngridengine = clustertrain_gridengine:PLUGIN\n"
    )


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    with GridEngine(tmp_path_factory.mktemp("ge") / "host") as started:
        yield started


class User:
    """The user on the submit host. The hosts of a job do not see the user's PYTHONPATH: their Python has the
    example by another one, which stands in for an installation."""

    def __init__(self, engine, folder):
        self.engine, self.folder = engine, folder
        install(folder / "site")
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/site:{CODE} exec {sys.executable} "$@"\n')
        self.python.chmod(0o755)

    def job(self, name, gridengine=None, **sections):
        job = {"name": name, "storage": "runs", "resources": ONE, **sections}
        job["gridengine"] = {"python": str(self.python), **(gridengine or {})}
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(job))

    def __call__(self, *arguments, code=0):
        done = self.engine.command(
            str(self.python),
            "-m",
            "clustertrain.cli",
            *arguments,
            cwd=self.folder,
            environment={"XDG_STATE_HOME": str(self.folder / "state"), "CLUSTERTRAIN_SITE": ""},
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def run(self, name):
        return RunDir.newest(str(self.folder / "runs"), name)

    def wait_for(self, condition, within_s=120):
        def said():
            return self.engine.command("qstat", "-u", "*").stdout + self.outputs()

        return wait_until(condition, within_s, said, 0.5)

    def result(self, name, attempt):
        """The result of an attempt, when it has one."""

        def read():
            attempts = [each for each in self.run(name).attempts() if each.n == attempt]
            return attempts[0].result.read() if attempts else None

        return self.wait_for(read)

    def outputs(self):
        return "\n".join(path.read_text() for path in self.folder.glob("*.o*"))


@pytest.fixture
def user(engine, tmp_path):
    yield User(engine, tmp_path)
    for line in engine.command("qstat", "-u", "*").stdout.splitlines()[2:]:
        engine.command("qdel", "-f", line.split()[0], check=False)  # it may have ended since


SLOW = {
    "task": "faulty:Faulty",
    "code": str(CODE),
    "train": {"epochs": 200, "batch_size": 4, "log_every": 1},
    "args": {"step_s": 0.3},
    "checkpoint": {"every": {"steps": 2}, "keep_last": 3},
    "failures": {"grace": "1s"},
}


def trains(user, name, attempt):
    """When that attempt has saved a checkpoint."""

    def has_saved():
        attempts = [each for each in user.run(name).attempts() if each.n == attempt]
        return attempts and any(each["kind"] == "checkpoint" for each in events_of_attempt(attempts[0]))

    user.wait_for(has_saved)


def test_the_example_trains_to_its_end_and_leaves_nothing(user, engine):
    shutil.copytree(ROOT / "examples" / "digits", user.folder / "digits")
    job = yaml.safe_load((user.folder / "digits" / "job.yaml").read_text())
    job |= {"gridengine": {"python": str(user.python)}, "storage": "../runs"}
    (user.folder / "digits" / "job.yaml").write_text(yaml.safe_dump(job))
    output = user("submit", "--to", "gridengine", "--wait", "digits/job.yaml")
    assert "submitted digits as Grid Engine job " in output
    assert user.result("digits", 1).state == "done"
    assert "done" in user("status", "digits/job.yaml")
    assert "step 345" in user("logs", "digits/job.yaml")
    assert "digits" in user("ls", "runs")
    assert "is already finished" in user("submit", "--to", "gridengine", "digits/job.yaml")
    user.wait_for(lambda: engine.processes() == [])


def test_a_stop_saves_and_the_next_submission_continues(user):
    user.job("slow", **SLOW)
    user("submit", "--to", "gridengine", "slow.yaml")
    trains(user, "slow", 1)
    assert "running" in user("status", "slow.yaml")
    assert "is running already" in user("submit", "--to", "gridengine", "slow.yaml", code=3)
    assert "slow: stopped (user) at step" in user("stop", "slow.yaml")
    stopped = user.result("slow", 1)
    assert (stopped.state, stopped.cause, stopped.exit_code) == ("stopped", "user", 75)
    user("submit", "--to", "gridengine", "slow.yaml")
    trains(user, "slow", 2)
    assert resumed_at(user, "slow", 2) == stopped.step
    user("stop", "slow.yaml")


def resumed_at(user, name, attempt):
    (found,) = [each for each in user.run(name).attempts() if each.n == attempt]
    return found.claim.read().resumes


@pytest.mark.nightly  # each start has 21 s, in which a busy machine does not get to a step
def test_at_the_time_limit_it_saves_and_grid_engine_starts_it_again(user):
    user.job("slow", {"time_limit": "81s"}, **SLOW)
    user("submit", "--to", "gridengine", "slow.yaml")
    for attempt, state in ((1, "preempted"), (2, "stopped")):  # the second gets another signal, and the last
        ended = user.result("slow", attempt)
        assert (ended.state, ended.cause) == (state, "time_limit"), user.outputs()
    assert resumed_at(user, "slow", 2) == user.result("slow", 1).step
    jobs = {each.claim.read().allocation.job_id for each in user.run("slow").attempts()}
    assert len(jobs) == 1
    user.wait_for(lambda: "stopped (time_limit)" in user("status", "slow.yaml"))
    user("submit", "--to", "gridengine", "slow.yaml", "--set", "gridengine.time_limit=1h")
    trains(user, "slow", 3)
    user("stop", "slow.yaml")
    assert user.result("slow", 3).cause == "user"


# In CI: the example is stopped and goes on, above; slurm/test_training.py preempts a run.
@pytest.mark.nightly
def test_in_place_of_a_suspension_it_saves_and_waits_and_is_cancelled_then(user, engine):
    user.job("slow", **SLOW)
    user("submit", "--to", "gridengine", "slow.yaml")
    trains(user, "slow", 1)
    job_id = user.run("slow").submissions()[0].job_id
    engine.command("qhold", job_id)
    assert "running" in user("status", "slow.yaml")
    engine.command("qmod", "-sj", job_id)
    assert user.result("slow", 1).state == "preempted"
    user.wait_for(lambda: "queued (held)" in user("status", "slow.yaml"))
    assert f"Grid Engine job {job_id} was cancelled in the queue" in user("stop", "slow.yaml")
    assert "cancelled" in user("status", "slow.yaml")


@pytest.mark.nightly  # in CI: slurm/test_training.py cancels a run
def test_qdel_lets_it_save(user, engine):
    user.job("slow", **SLOW)
    user("submit", "--to", "gridengine", "slow.yaml")
    trains(user, "slow", 1)
    engine.command("qdel", user.run("slow").submissions()[0].job_id)
    result = user.result("slow", 1)
    assert (result.state, result.cause) == ("stopped", "terminated")
    assert result.step


def test_a_job_that_may_have_started_is_not_cancelled_in_its_queue(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    from clustertrain_gridengine import GridEngineScheduler

    for name, line in {"qstat": "exit 1", "qdel": f"touch {tmp_path}/deleted"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ClusterError, match="does not answer"):
        GridEngineScheduler().cancel_waiting(Sent("7"))
    assert not (tmp_path / "deleted").exists()


REFUSED = [
    ({"queue": "no.q"}, {}, 3, "Grid Engine refuses the job refused: "),
    ({}, {"gpus_per_worker": 9}, 3, 'at host "ge1" because it offers only'),
    ({}, {"workers": 2, "nodes": 2}, 2, "a job of Grid Engine has at most 1 here"),
    ({"time_limit": "10s"}, {}, 2, "before a last save of"),
    ({"output": "nowhere"}, {}, 3, "which is no folder"),
    ({"queue": "a b"}, {}, 2, "must be one word"),
]


@pytest.mark.parametrize(("section", "resources", "code", "text"), REFUSED)
def test_what_cannot_run_there_is_refused(user, section, resources, code, text):
    user.job("refused", section, **{**SLOW, "resources": {**ONE, **resources}})
    assert text in user("submit", "--to", "gridengine", "refused.yaml", code=code)
    assert user.run("refused").submissions() == []


def test_what_is_sent_is_what_render_prints(user):
    user.job(
        "slow", {"queue": "all.q", "project": "physics", "time_limit": "1h"}, **SLOW, env={"KEY": "${HOOK}"}
    )
    script = user("render", "--to", "gridengine", "slow.yaml")
    assert " -v CLUSTERTRAIN_SUBMISSION,HOOK\n" in script
    assert "#$ -q all.q\n#$ -P physics\n#$ -l s_rt=3539,h_rt=3600\n" in script
    assert script == user("render", "--to", "gridengine", "slow.yaml")


@pytest.mark.parametrize(
    ("environment", "code", "printed"),
    [
        ({"HOOK": "", "SGE_TASK_ID": "undefined"}, 0, "no HOOK\n"),  # empty: it is unset
        ({"HOOK": "set", "NHOSTS": "1"}, 0, "set\n"),
        ({"HOOK": "", "SGE_TASK_ID": "2"}, 2, "error: element 2 of an array; all its elements would be the"),
        ({"HOOK": "", "NHOSTS": "2"}, 3, "the allocation rule of smp has to be $pe_slots\n"),
    ],
)
def test_what_the_script_does_before_it_starts_the_run(user, environment, code, printed):
    user.job("slow", **SLOW, env={"KEY": "${HOOK:-http://h}"})
    script = user("render", "--to", "gridengine", "slow.yaml").replace("exec ", 'echo "${HOOK-no HOOK}" # ')
    done = ran(["bash"], code=code, input=script, env=environment)
    assert printed in done.stdout


def test_it_fulfils_the_contract_of_a_scheduler(user, engine):
    contract = Path(__file__).parent / "contract_of_gridengine.py"
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", f"--basetemp={user.folder}/contract"]
    command = [str(user.python), "-m", "pytest", *options, str(contract)]
    done = engine.command(*command, cwd=ROOT, check=False, environment={"CLUSTERTRAIN_REQUIRE": ""})
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
