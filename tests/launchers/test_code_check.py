"""The check of the code as `check`, `run` and `submit` call it: a child process, its end, its deadline."""

import os
import sys
import textwrap

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.errors import ClusterTrainError, DataError, JobError, RunStopped
from clustertrain.launchers import check
from clustertrain.launchers.check import check_code, check_loggers
from clustertrain.launchers.local.run import run_local
from clustertrain.node import installed
from clustertrain.node.installed import how_to_install
from clustertrain.observe.screen import open_screen
from clustertrain.run_files.admission import Options
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import write_result
from support.commands import ran
from support.starts import claim_next_attempt

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _no_deadline(monkeypatch):
    """On a busy machine the import of torch may take minutes."""
    monkeypatch.setattr(check, "DEADLINE_S", 3600.0)


@pytest.fixture
def code(tmp_path):
    """Writes the module `mine`; returns the sections of a job on its function."""

    def write(text):
        (tmp_path / "mine.py").write_text(textwrap.dedent(text))
        return {"function": "mine:train", "task": None, "train": None}

    return write


def test_it_shows_what_the_code_prints(job, code):
    prints, said = code("print('one\\x1b[2J\\rtwo')\nprint('three', end='')\ndef train(config): pass"), []
    check_code(job(**prints), said.append)
    assert said[:-1] == ["  | two", "  | three"]
    with pytest.raises(JobError, match="KeyError"):
        check_code(job(**code("print('four')\n{}[1]\ndef train(config): pass")), said.append)
    assert said[3:] == ["  | four"]


def test_a_variable_of_env_that_is_not_set_is_an_error_here_and_empty_elsewhere(
    job, code, monkeypatch, tmp_path
):
    size = "import os\nassert os.environ['SIZE'] == os.environ.get('FOUR', '')\ndef train(config): pass"
    sections = code(size)
    refers = job(**sections, env={"SIZE": "${FOUR}"}, resources={"cpus_per_worker": 0.1})
    monkeypatch.delenv("FOUR", raising=False)
    check_code(refers, print, elsewhere=True)
    unset = r"env\.SIZE: needs the environment variable FOUR, which is not set on"
    with pytest.raises(JobError, match=unset):
        check_code(refers, print)
    with pytest.raises(JobError, match=unset):
        run_local(refers, Options(), open_screen(), owns_process=True)
    assert RunDir.newest(job().storage.location, "a").attempts() == []
    monkeypatch.setenv("FOUR", "4")
    check_code(refers, print)


def test_data_that_is_not_there_is_an_error_here_and_a_note_elsewhere(job, code, tmp_path):
    sections = code("def train(config): pass")
    data = {"d": {"uri": str(tmp_path / "none")}}
    with pytest.raises(DataError, match=r"data\.d: .*none"):
        check_code(job(**sections, data=data), print)
    said = []
    check_code(job(**sections, data=data), said.append, elsewhere=True)
    assert said[0].startswith("note: data.d is not on this machine: ")


def test_code_that_kills_the_process_is_an_error_here_and_a_note_elsewhere(job, code):
    sections = code(
        "import os, signal\nprint('hello', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)\n"
        "def train(config): pass\n"
    )
    with pytest.raises(ClusterTrainError) as caught:
        check_code(job(**sections), print)
    assert str(caught.value).splitlines() == [
        "The check of the code was killed by signal 11, in the import of the code. Its last lines:",
        "  | hello",
    ]
    said = []
    check_code(job(**sections), said.append, elsewhere=True)
    assert said[0].startswith("note: not all of the code could be checked here: The check of the code was")


def test_a_check_that_takes_too_long_is_ended_and_the_start_goes_on(job, code, monkeypatch):
    monkeypatch.setattr(check, "DEADLINE_S", 0.5)
    said = []
    check_code(job(**code("import time\ntime.sleep(600)\ndef train(config): pass")), said.append)
    assert said[0].startswith("note: the check of the code was ended after 0.5 s, in the ")


def test_a_signal_ends_it_and_what_it_started(job, code, tmp_path):
    sections = code(
        """
        import os, signal, subprocess, time
        child = subprocess.Popen(["sleep", "600"])
        open("pid", "w").write(str(child.pid))
        os.kill(int(os.environ["PARENT"]), signal.SIGTERM)
        time.sleep(600)
        def train(config): pass
        """
    )
    with pytest.raises(RunStopped) as caught:
        check_code(job(**sections, env={"PARENT": os.getpid()}), print)
    assert caught.value.exit_code == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_model_that_needs_more_memory_than_half_of_this_machine_is_a_note_elsewhere(job, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom clustertrain import Task\nclass T(Task):\n"
        "    def model(self): return torch.nn.Linear(1 << 20, 1 << 20)\n"
        "    def train_data(self, data): return [(torch.zeros(1), 0)] * 9\n"
    )
    said = []
    check_code(job(task="mine:T"), said.append, elsewhere=True)
    assert said[0].startswith("note: not all of the code could be checked here: rehearsal: T.model()")


def test_a_machine_without_torch_says_so_and_goes_on(job, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from clustertrain import Task\nclass T(Task):\n    pass\n")
    monkeypatch.setitem(sys.modules, "torch", None)
    said = []
    check_code(job(task="mine:T"), said.append, elsewhere=True)
    assert said[0] == "note: the code was not imported: torch is not installed here"


@pytest.mark.parametrize("option", ["fresh", "takeover"])
def test_a_run_that_would_end_or_hide_another_claims_no_attempt_with_a_mistake(
    job, code, monkeypatch, tmp_path, option
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    sections = code("import no_such_package\ndef train(config): pass")
    wrong = job(**sections, resources={"cpus_per_worker": 0.1})
    run = RunDir.newest(job().storage.location, "a")
    write_result(claim_attempt(run), Result("failed", "error", 1))
    with pytest.raises(JobError, match="No module named 'no_such_package'"):
        run_local(wrong, Options(**{option: True}), open_screen(), owns_process=True)
    assert RunDir.newest(job().storage.location, "a").generation == run.generation
    assert [attempt.n for attempt in run.attempts()] == [1]


def test_a_takeover_requests_the_stop_only_after_the_check(job):
    run = RunDir.newest(job().storage.location, "a")
    running = claim_attempt(run)  # by this process, which lives

    def refuse(world_size):
        raise JobError("a mistake")

    with pytest.raises(JobError, match="a mistake"):
        claim_next_attempt(job(), Options(takeover=True), lambda: [1], print, before_claim=refuse)
    assert running.stop.read() is None
    claim_next_attempt(job(), Options(takeover=True), lambda: [1], print)
    assert running.stop.read() is not None


def test_the_command_reports_a_mistake_with_its_exit_code(tmp_path):
    (tmp_path / "mine.py").write_text("import no_such_package\ndef train(config): pass\n")
    (tmp_path / "job.yaml").write_text("name: a\nfunction: mine:train\n")
    command = [sys.executable, "-m", "clustertrain.cli", "check", str(tmp_path / "job.yaml")]
    done = ran(command, code=2)
    assert "No module named 'no_such_package'" in done.stderr
    assert "\nAt mine.py:1." in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "mine.py").write_text("def train(config): pass\n")
    (tmp_path / "random.py").touch()  # in the folder of the call and of the code
    done = ran([sys.executable, "-P", *command[1:]], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("checked in ")


def with_loggers(job, *names, **sections):
    return job(train={"epochs": 1, "batch_size": 1, "log": [*names]}, **sections)


def test_a_logger_that_is_not_installed_is_an_error_here_and_a_note_elsewhere(job, monkeypatch):
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name == "wandb" else object())
    with pytest.raises(JobError, match="wandb: not installed here") as refused:
        check_code(with_loggers(job, "tensorboard", "wandb"), print)
    assert str(refused.value).endswith(f"\n{how_to_install('wandb')}")
    (note,) = check_loggers(with_loggers(job, "wandb"), elsewhere=True)
    assert note.endswith(f"not installed here; the nodes need it. {how_to_install('wandb')}")
    assert check_loggers(with_loggers(job, "mlflow")) == []


def test_storage_on_s3_needs_a_server_of_mlflow_and_a_folder_of_wandb(job, monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "WANDB_DIR", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    server, s3 = {"MLFLOW_TRACKING_URI": "http://mlflow:5000"}, "s3://b/p"
    assert check_loggers(with_loggers(job, "mlflow")) == []
    for elsewhere in (False, True):
        with pytest.raises(JobError, match=r"env: \{MLFLOW_TRACKING_URI: https://…\}"):
            check_loggers(with_loggers(job, "mlflow", storage=s3), elsewhere=elsewhere)
        assert check_loggers(with_loggers(job, "mlflow", storage=s3, env=server), elsewhere=elsewhere) == []
    secret = {"secrets": ["mlflow"]}
    assert check_loggers(with_loggers(job, "mlflow", storage=s3, kubernetes=secret), elsewhere=True) == []
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert check_loggers(with_loggers(job, "mlflow", storage=s3)) == []
    with pytest.raises(JobError, match="MLFLOW_TRACKING_URI is not set"):
        check_loggers(with_loggers(job, "mlflow", storage=s3), elsewhere=True)
    passed = {"environment": ["MLFLOW_TRACKING_URI"]}
    assert check_loggers(with_loggers(job, "mlflow", storage=s3, slurm=passed), elsewhere=True) == []
    assert check_loggers(with_loggers(job, "wandb", storage=s3)) == []
    with pytest.raises(JobError, match=r"env: \{WANDB_DIR: /…\}"):
        check_loggers(with_loggers(job, "wandb", storage=s3, env={"WANDB_MODE": "offline"}))
    offline = {"WANDB_MODE": "offline", "WANDB_DIR": "/shared"}
    assert check_loggers(with_loggers(job, "wandb", storage=s3, env=offline)) == []


@pytest.mark.parametrize("launcher", ["slurm", "kubernetes"])
def test_check_for_a_cluster_checks_the_loggers_as_well(tmp_path, monkeypatch, launcher):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # no kubectl
    (tmp_path / "m.py").write_text("class T: pass\n")
    job_file = tmp_path / "job.yaml"
    job_file.write_text(
        "{name: a, task: 'm:T', train: {epochs: 1, batch_size: 1, log: mlflow},"
        " storage: 's3://b/p', image: 'i:1'}"
    )
    check_it = ("check", str(job_file), "--no-code", "--to", launcher, "--set")
    refused = CliRunner().invoke(main, [*check_it, "name=b"])
    assert (refused.exit_code, "MLFLOW_TRACKING_URI is not set" in refused.output) == (2, True)
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name == "mlflow" else object())
    done = CliRunner().invoke(main, [*check_it, "env.MLFLOW_TRACKING_URI=http://mlflow:5000"])
    assert done.output.startswith("note: train.log: mlflow: not installed here; the nodes need it")
