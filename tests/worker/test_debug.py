"""`clustertrain run --debug`: breakpoint() stops, an interrupt ends it, nothing of a run is written."""

import os
import signal
import subprocess
import sys
import textwrap
from itertools import takewhile

import pytest
import yaml

from support.commands import ran

pytestmark = pytest.mark.slow

# A shell starts what runs in its background with SIGINT ignored.
_INTERRUPTIBLE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""

TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from clustertrain import Task

class Tiny(Task):
    calls = 0

    def model(self):
        return nn.Linear(2, 2)

    def train_data(self, data):
        return TensorDataset(torch.zeros(8, 2), torch.zeros(8, dtype=torch.long))

    def loss(self, model, batch):
        self.calls += 1
        if self.calls == 2:
            breakpoint()
        return super().loss(model, batch)
"""


@pytest.fixture
def debug(tmp_path):
    """Runs `run --debug` of a job on the module `mine`, with this input, or until `interrupt_at` is shown."""

    def run(text, *, typed="", interrupt_at=None, **sections):
        (tmp_path / "mine.py").write_text(textwrap.dedent(text))
        (tmp_path / "job.yaml").write_text(yaml.safe_dump({"name": "a", **sections}))
        command = [sys.executable, "-m", "clustertrain.cli", "run", "--debug", "job.yaml"]
        if interrupt_at is None:
            return ran(command, cwd=tmp_path, input=typed)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, "-c", _INTERRUPTIBLE, *command]
        with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
            seen = [*takewhile(lambda line: line != interrupt_at, process.stdout)]
            process.send_signal(signal.SIGINT)
            printed, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(command, process.returncode, "".join(seen) + printed, errors)

    return run


def test_breakpoint_stops_and_c_continues(debug, tmp_path):
    done = debug(
        TASK,
        typed="p len(batch[0]), self.calls\nc\n",
        task="mine:Tiny",
        train={"epochs": 1, "global_batch_size": 8, "loader_workers": 1, "compile": True},
        resources={"workers": 2},
    )
    assert done.returncode == 0, done.stderr
    said, answer, _ = done.stdout.split("(Pdb) ")
    assert "debug: rank 0 as the only rank, in this process: no Ray, no restarts" in said
    assert "nothing resumed; no loader processes, no compile" in said
    assert answer == "(4, 2)\n", "half of the global batch"
    assert not (tmp_path / "runs").exists()


def test_it_has_the_hash_seed_of_the_job(debug):
    text = "def train(config): print('bucket', hash('oak') % 1000)"
    done = debug(text, function="mine:train", env={"PYTHONHASHSEED": "7"})
    command = [sys.executable, "-c", "print('bucket', hash('oak') % 1000)"]
    expected = subprocess.check_output(command, env={**os.environ, "PYTHONHASHSEED": "7"}, text=True)
    assert (done.returncode, done.stdout.count(expected)) == (0, 1), done.stdout


def test_q_and_an_interrupt_end_it_without_a_traceback(debug):
    done = debug(TASK, typed="q\n", task="mine:Tiny", train={"epochs": 1, "batch_size": 4})
    assert "(Pdb) " in done.stdout
    assert (done.returncode, "Traceback" in done.stdout + done.stderr) == (130, False)
    # One long sleep would begin again: a signal between the check of Python and the system call is not seen.
    waits = """
        import time
        def train(config):
            print('in train', config, flush=True)
            while True:
                time.sleep(0.1)
        """
    done = debug(waits, interrupt_at="in train {'a': 1}\n", function="mine:train", args={"a": 1})
    assert "debug: rank 0 as the only rank, in this process" in done.stdout
    assert (done.returncode, "Traceback" in done.stdout + done.stderr) == (130, False)


def test_a_script_is_the_main_program_and_its_exception_keeps_its_traceback(debug):
    script = """
    import os, sys
    import torch.distributed as dist

    if __name__ == "__main__":
        dist.init_process_group("gloo")
        print("rank", dist.get_rank(), "of", dist.get_world_size(), sys.argv[1:3])
        dist.destroy_process_group()
        assert os.path.isdir(os.environ["CLUSTERTRAIN_CHECKPOINT_DIR"])
        assert sys.argv[3:] == [os.environ["CLUSTERTRAIN_CHECKPOINT_DIR"] + "/${now}"]
        assert os.environ["START"] == "1.0"
        raise ValueError("the sensor is upside down")
    """
    done = debug(
        script,
        script="mine.py",
        args=["--lr", 0.1, "${CLUSTERTRAIN_CHECKPOINT_DIR}/${now}"],
        env={"START": "${CLUSTERTRAIN_ATTEMPT}.${CLUSTERTRAIN_RESTART}"},
    )
    assert "rank 0 of 1 ['--lr', '0.1']" in done.stdout
    assert done.returncode == 1
    assert 'mine.py", line 12' in done.stderr
    assert "ValueError: the sensor is upside down" in done.stderr


def test_a_module_is_the_main_program_and_another_interpreter_is_refused(debug, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "other.py").write_text("x = 1\n")
    job = {"module": "mine", "args": ["--n=1"], "code": [".", "lib"], "interpreter": sys.executable}
    module = "import sys, other\nprint(__name__, sys.argv[1:], other.x)\n"
    done = debug(module, **job)
    assert done.returncode == 2
    assert "cannot be used with --debug" in done.stderr
    done = debug(module, **{**job, "interpreter": None})
    assert "__main__ ['--n=1'] 1\n" in done.stdout


def test_a_function_has_its_session_and_saves_nothing(debug, tmp_path):
    function = """
    import argparse
    import sys
    import torch
    from clustertrain import session

    argparse.ArgumentParser().parse_args()

    def train(config):
        s = session.current()
        assert s.restore() is None
        for step in (1, 2):
            s.log(step=step, loss=1.0)
            assert not s.step_done(step).stop
            s.save(step=step, state={"w": torch.zeros(1)})
        print("trained", s.rank, s.world_size)
        sys.exit()
    """
    done = debug(function, function="mine:train")
    assert done.returncode == 0, done.stderr
    assert "trained 0 1" in done.stdout
    assert not (tmp_path / "runs").exists()
