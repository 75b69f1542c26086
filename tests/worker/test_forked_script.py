"""A script in a fork of the fork server is as in a process of its own, or it gets one."""

import os
import signal
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from clustertrain.worker.scripts.forked_script import ScriptStart
from clustertrain.worker.scripts.script import ScriptFailed
from clustertrain.worker.scripts.script_command import Program
from commands import ran
from script_runs import ran_script

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fork_server")]

LOADERS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, n):
        return torch.tensor(n * n)

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        loader = DataLoader(Squares(), 4, num_workers=1, multiprocessing_context=method)
        print(method, [batch.tolist() for batch in loader])
"""

GROUPS = """
import sys
import torch
import torch.distributed as dist

sys.setswitchinterval(30)  # a thread gets the GIL only where the main thread waits without it

def train():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    model(torch.ones(2, 4)).sum().backward()
    dist.destroy_process_group()

for _ in range(20):
    train()
print("ended")
"""

NEVER_DESTROYED = """
import sys
import torch
import torch.distributed as dist

sys.setswitchinterval(30)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.ones(2, 4)).sum().backward()
"""


@pytest.fixture
def run(tmp_path, capfd):
    """Runs a script's text; returns what it printed."""

    def run_text(text, *arguments, **environment):
        (tmp_path / "train.py").write_text(text)
        arguments = arguments or (str(tmp_path / "train.py"), "--lr", "0.1")
        program = Program("train.py", (sys.executable, "-u", *arguments))
        ran_script(program, tmp_path, environment={"PYTHONPATH": str(tmp_path), **environment})
        return capfd.readouterr().out

    return run_text


HAS_TORCH = "import sys; print('torch' in sys.modules)\n"


def test_torch_is_imported_already_and_nothing_of_ray(run):
    assert run(f"{HAS_TORCH}print('ray' in sys.modules)") == "True\nFalse\n"


def test_a_script_with_a_gpu_has_the_settings_of_the_allocator(run):
    """The rank sets this variable after the fork server has imported torch."""
    text = f"{HAS_TORCH}import torch; print(torch._C._accelerator_getAllocatorSettings())"
    given = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert run(text, **given) == "True\nexpandable_segments:True\n"


def test_what_torch_reads_once_and_a_module_of_the_same_name_need_a_process_of_its_own(run, tmp_path):
    """Such as the number of OpenMP's threads."""
    text = f"{HAS_TORCH}import torch; print(torch.get_num_threads())"
    assert run(text, OMP_NUM_THREADS="2") == (
        "clustertrain: the script imports torch itself: the fork server has another OMP_NUM_THREADS\n"
        "False\n2\n"
    )
    assert run("from tqdm import tqdm; print(tqdm([]).disable)", TQDM_DISABLE="1").endswith("True\n")
    (tmp_path / "yaml.py").write_text("x = 5")
    told, number = run("import yaml; print(yaml.x)").splitlines()
    assert told.endswith("a module with the name of one that is imported: yaml")
    assert number == "5"


def test_what_is_read_when_a_process_starts_is_compared_with_the_start_of_the_server(tmp_path, monkeypatch):
    """The driver, whose forks they are, sets the variables of `env` later."""
    start = ScriptStart([str(tmp_path / "train.py")], dict(os.environ), str(tmp_path), [])
    assert start.differs() == ""
    for name, value in (("PYTHONHASHSEED", "7"), ("TZ", "Asia/Tokyo")):
        monkeypatch.setenv(name, value)
    assert replace(start, environment=dict(os.environ)).differs() == (
        "the fork server has another PYTHONHASHSEED, TZ"
    )


def test_it_is_the_main_program(run, tmp_path):
    text = "import sys, pickle\nclass A: pass\nprint(__name__, __spec__, __file__, sys.argv, sys.path[0])\n"
    path = str(tmp_path / "train.py")
    shown = f"__main__ None {path} {[path, '--lr', '0.1']} {tmp_path}\n"
    assert run(f"{text}print(pickle.loads(pickle.dumps(A())).__class__)") == f"{shown}<class '__main__.A'>\n"
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(
        "import sys; from . import __name__ as parent; print(__name__, __spec__.name, parent, sys.argv)"
    )
    module = f"__main__ package.train package {[str(tmp_path / 'package' / 'train.py'), '--x']}\n"
    assert run("", "-m", "package.train", "--x") == module


def test_an_archive_with_a_main_module_runs(run, tmp_path):
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", "import sys, near; print(__name__, near.x, sys.argv[1:])")
        archive.writestr("near.py", "x = 5")
    assert run("", str(tmp_path / "app.pyz"), "--y") == "__main__ 5 ['--y']\n"


def test_its_end_is_that_of_python(run, tmp_path):
    """Threads, atexit, files that were not closed."""
    text = (
        "import atexit, threading, time\n"
        "file = open('left-open', 'w'); file.write('all of it')\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread', __name__))).start()\n"
        "print('main')\n"
    )
    assert run(text) == "main\nthread __main__\nat exit\n"
    assert (tmp_path / "left-open").read_text() == "all of it"


def test_an_interrupt_ends_it_as_it_ends_python(run, capfd):
    """A common handler of SIGTERM raises a KeyboardInterrupt, and what is registered saves."""
    text = (
        "import atexit, os, signal, threading, time\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "time.sleep(60)\n"
    )
    with pytest.raises(ScriptFailed) as failed:
        run(text)
    assert failed.value.returncode == -signal.SIGINT
    assert capfd.readouterr().out.endswith("KeyboardInterrupt\nthread\nat exit\n")


@pytest.mark.parametrize(
    ("text", "code"),
    [("import os; os._exit(5)", 5), ("raise KeyboardInterrupt", -2), ("import sys; sys.exit(-1)", 255)],
)
def test_its_exit_code_is_that_of_python(run, text, code):
    with pytest.raises(ScriptFailed) as failed:
        run(text)
    assert failed.value.returncode == code


@pytest.mark.parametrize(("hook", "code", "said"), [("sys.exit(7)", 7, ""), ("{}['a']", 1, "ZeroDivision")])
def test_an_excepthook_that_raises_ends_the_process(hook, code, said):
    """The callers below are a fork of the driver."""
    text = (
        "import sys\nfrom clustertrain.worker.scripts.main_program import exit_after\n"
        f"def hook(*error):\n    {hook}\nsys.excepthook = hook\n"
        "try:\n    exit_after(lambda: 1 / 0)\nfinally:\n    print('goes on', flush=True)\n"
    )
    done = ran([sys.executable, "-c", text], code=code)
    assert done.stdout == ""
    assert said in done.stderr


def test_a_traceback_begins_in_the_script(run, capfd):
    with pytest.raises(ScriptFailed):
        run("def main():\n    raise ValueError('no eels')\nmain()")
    printed = capfd.readouterr().out
    assert printed.count("  File ") == 2
    assert "clustertrain" not in printed


def test_processes_of_a_data_loader_find_its_classes(run):
    lines = [f"{method} [[0, 1, 4, 9]]" for method in ("fork", "spawn", "forkserver")]
    assert run(LOADERS).splitlines() == lines


def test_a_model_that_outlives_its_process_group_does_not_block_the_end(run):
    assert run(GROUPS, GLOO_SOCKET_IFNAME="lo") == "ended\n"


def test_a_process_group_that_is_never_destroyed_does_not_abort_the_end(run, tmp_path):
    (tmp_path / "group.py").write_text(NEVER_DESTROYED)
    for attempt in range(3):
        arguments = [(str(tmp_path / "group.py"), str(tmp_path / f"store-{attempt}"), rank) for rank in "01"]
        with ThreadPoolExecutor() as ranks:
            list(ranks.map(lambda each: run("", *each, GLOO_SOCKET_IFNAME="lo"), arguments))


def test_each_draws_numbers_of_its_own(run):
    text = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1).item())"
    first, second = run(text).split(), run(text).split()
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_a_killed_keeper_is_a_killed_script(run):
    """As if the kernel had killed both for memory."""
    with pytest.raises(ScriptFailed) as failed:
        run(
            "import os, time\n"
            "time.sleep(1)\n"  # else the keeper may not have told yet that it has started the script
            f"if os.getppid() != {os.getpid()}: os.kill(os.getppid(), 9)\n"
            "time.sleep(60)"
        )
    assert failed.value.returncode == -signal.SIGKILL


def test_descriptors_signals_and_session_are_those_of_a_new_process(run):
    text = (
        "import os, signal\n"
        "open_files = sorted(os.listdir('/proc/self/fd'))\n"
        "print(open_files, os.readlink('/proc/self/fd/0'), os.getsid(0) == os.getpid())\n"
        "print(*[n for n in signal.valid_signals() if callable(signal.getsignal(n))])\n"
        "print(signal.getsignal(17) == signal.SIG_DFL, signal.pthread_sigmask(signal.SIG_BLOCK, ()))\n"
    )
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # in a shell's background, and then inherited
    own = "" if ignored else str(signal.SIGINT.value)
    assert run(text) == f"['0', '1', '2', '3'] /dev/null True\n{own}\nTrue set()\n"


def test_without_its_server_it_starts_anew(run, monkeypatch, tmp_path):
    monkeypatch.setitem(os.environ, "CLUSTERTRAIN_FORK_SERVER", str(Path(tmp_path, "gone")))
    told, has_torch = run(HAS_TORCH).splitlines()
    assert told.startswith("clustertrain: the script imports torch itself: ")
    assert has_torch == "False"
