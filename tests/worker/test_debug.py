"""`clustertrain run --debug` on a terminal: breakpoint() stops, Ctrl-C ends, nothing of a run is written."""

import os
import pty
import select
import subprocess
import sys
import textwrap
import time

import pytest
import yaml

from support.commands import ran

pytestmark = pytest.mark.slow

# The terminal becomes the controlling one, so that Ctrl-C is a signal to the program, as in a shell.
_WITH_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)
PATIENCE_S = 120

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


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command, cwd):
        self._fd, inner = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WITH_TERMINAL, *command],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=cwd,
            start_new_session=True,
        )
        os.close(inner)
        self.shown = ""

    def wait_for(self, text):
        """Read until the program shows the text after what was waited for before."""
        ends = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert time.monotonic() < ends and self._read(), self.shown
        before, _, self.shown = self.shown.partition(text)
        return before

    def _read(self):
        if not select.select([self._fd], [], [], PATIENCE_S)[0]:
            return False
        try:
            part = os.read(self._fd, 4096)
        except OSError:  # the program has closed the terminal
            return False
        self.shown += part.decode()
        return bool(part)

    def type(self, text):
        os.write(self._fd, text.encode())

    def end(self):
        """(its exit code, what it showed since)."""
        while self._read():
            pass
        return self.process.wait(PATIENCE_S), self.shown.replace("\r\n", "\n")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._fd)


@pytest.fixture
def debug(tmp_path):
    """Starts `run --debug` of a job on the module `mine`."""
    started = []

    def start(text, *, by_terminal=True, **sections):
        (tmp_path / "mine.py").write_text(textwrap.dedent(text))
        (tmp_path / "job.yaml").write_text(yaml.safe_dump({"name": "a", **sections}))
        command = [sys.executable, "-m", "clustertrain.cli", "run", "--debug", "job.yaml"]
        if not by_terminal:
            return ran(command, cwd=tmp_path)
        started.append(Terminal(command, tmp_path))
        return started[-1]

    yield start
    for terminal in started:
        terminal.close()


def test_breakpoint_stops_and_c_continues(debug, tmp_path):
    terminal = debug(
        TASK,
        task="mine:Tiny",
        train={"epochs": 1, "global_batch_size": 8, "loader_workers": 1, "compile": True},
        resources={"workers": 2},
    )
    terminal.wait_for("debug: rank 0 as the only rank, in this process: no Ray, no restarts")
    terminal.wait_for("nothing resumed; no loader processes, no compile")
    terminal.wait_for("(Pdb) ")
    terminal.type("p len(batch[0]), self.calls\n")
    terminal.wait_for("(4, 2)")  # half of the global batch
    terminal.wait_for("(Pdb) ")
    terminal.type("c\n")
    code, shown = terminal.end()
    assert code == 0, shown
    assert not (tmp_path / "runs").exists()


def test_it_has_the_hash_seed_of_the_job(debug):
    text = "def train(config): print('bucket', hash('oak') % 1000)"
    code, shown = debug(text, function="mine:train", env={"PYTHONHASHSEED": "7"}).end()
    command = [sys.executable, "-c", "print('bucket', hash('oak') % 1000)"]
    expected = subprocess.check_output(command, env={**os.environ, "PYTHONHASHSEED": "7"}, text=True)
    assert (code, shown.count(expected)) == (0, 1), shown


def test_q_and_control_c_end_it_without_a_traceback(debug):
    terminal = debug(TASK, task="mine:Tiny", train={"epochs": 1, "batch_size": 4})
    terminal.wait_for("(Pdb) ")
    terminal.type("q\n")
    code, shown = terminal.end()
    assert code == 130
    assert "Traceback" not in shown
    # One long sleep would begin again: a signal between the check of Python and the system call is not seen.
    waits = """
        import time
        def train(config):
            print('in train', config)
            while True:
                time.sleep(0.1)
        """
    terminal = debug(waits, function="mine:train", args={"a": 1})
    terminal.wait_for("debug: rank 0 as the only rank, in this process")
    terminal.wait_for("in train {'a': 1}")
    terminal.type("\x03")
    code, shown = terminal.end()
    assert code == 130
    assert "Traceback" not in shown


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
        by_terminal=False,
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
    done = debug(module, by_terminal=False, **job)
    assert done.returncode == 2
    assert "cannot be used with --debug" in done.stderr
    done = debug(module, by_terminal=False, **{**job, "interpreter": None})
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
    done = debug(function, by_terminal=False, function="mine:train")
    assert done.returncode == 0, done.stderr
    assert "trained 0 1" in done.stdout
    assert not (tmp_path / "runs").exists()
