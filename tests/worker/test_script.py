import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clustertrain.job.model import Job
from clustertrain.node.limits import process_state
from clustertrain.node.waiting import wait_until
from clustertrain.worker.place import ONLY_RANK
from clustertrain.worker.scripts import script
from clustertrain.worker.scripts.script import ScriptFailed, torchrun_environment
from clustertrain.worker.scripts.script_command import program_of
from support.commands import ran
from support.leftovers import left_after, living_descendants
from support.script_processes import ran_script

pytestmark = pytest.mark.slow

SCRIPT = Job(name="a", script="train.py")


@pytest.fixture
def run(tmp_path, capfd):
    """Runs a script's text as rank 1; returns (finished, what it printed)."""

    def run_text(text, *args, **options):
        (tmp_path / "train.py").write_text(text)
        program = program_of(SCRIPT, [tmp_path], args)
        finished = ran_script(program, tmp_path, **{"rank": 1, "grace_s": 5.0, **options})
        return finished, capfd.readouterr().out

    return run_text


def start_worker(folder, **options):
    """A process that runs train.py of the folder as a worker does."""
    source = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from pathlib import Path; from support.script_processes import ran_script\n"
        "from clustertrain.worker.scripts.script_command import Program\n"
        f"folder = Path({str(folder)!r})\n"
        "program = Program('train.py', (sys.executable, '-u', str(folder / 'train.py')))\n"
        "ran_script(program, folder)"
    )
    return subprocess.Popen([sys.executable, "-c", source], **options)


def test_it_gets_no_descriptor_no_handler_and_no_session_of_its_worker(run):
    text = (
        "import os, signal\n"
        "print(sorted(os.listdir('/proc/self/fd')), os.readlink('/proc/self/fd/0'))\n"
        "print(*[n for n in signal.valid_signals() if callable(signal.getsignal(n))])\n"
        "print(signal.getsignal(17) == signal.SIG_DFL, signal.pthread_sigmask(signal.SIG_BLOCK, ()))\n"
        "print(os.getsid(0) == os.getpid())\n"
    )
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # in a shell's background, and then inherited
    own = "" if ignored else str(signal.SIGINT.value)
    assert run(text)[1] == f"['0', '1', '2', '3'] /dev/null\n{own}\nTrue set()\nTrue\n"


LOGS_AND_EXITS = """
import sys, traceback
try:
    1 / 0
except ArithmeticError:
    traceback.print_exc()
sys.stdout.flush()
sys.exit(7)
"""
FAILURES = {
    "its last lines": (
        "import sys\nfor n in range(20): print('line', n)\nsys.exit('out of eels')",
        r"train\.py ended with exit code 1 on rank 1\.\nIts last lines:\n  \| line 13\n(.*\n)+  \| out of .*",
    ),
    "its exception, as that of a task": (
        "def main():\n    raise ValueError('no eels')\nprint('step 1')\nmain()",
        r"rank 1, train\.py:2 in main: ValueError: no eels\n"
        r"  called from train\.py:4\ntrain\.py ended with exit code 1\.",
    ),
    "a message of megabytes on one line": (
        "raise ValueError('no ' + 'x' * 2_000_000)",
        r"rank 1, train\.py:1: ValueError: no x{500,600} …\n.*",
    ),
    "a traceback is no cause of another exit code": (
        LOGS_AND_EXITS,
        r"train\.py ended with exit code 7 on rank 1\.\nIts last lines:\n(.*\n)+  \| ZeroDivisionError: .*",
    ),
    "no progress bar and no colors": (
        r"print('10%\r20%\r\x1b[31m30%\x1b[0m\a'); import sys; sys.exit(3)",
        r"train\.py ended with exit code 3 on rank 1\.\nIts last lines:\n  \| 30%\\x07",
    ),
    "a signal": (
        "import os; os.kill(os.getpid(), 11)",
        r"train\.py ended by signal 11 \(SIGSEGV\) on (.*\n){2}.*",
    ),
}


@pytest.mark.parametrize(("text", "said"), FAILURES.values(), ids=FAILURES)
def test_a_failure_has_its_code_or_signal_and_its_exception_or_last_lines(run, text, said):
    with pytest.raises(ScriptFailed) as caught:
        run(text)
    assert re.fullmatch(said, str(caught.value)), str(caught.value)
    report, code = caught.value.report, caught.value.returncode
    assert (report is not None) == ("ValueError" in text)
    assert re.search(rf"ended (with exit code {code}|by signal {-code})\b", str(caught.value))


TIDY = """
import signal, sys, pathlib, time
def end(number, frame):
    pathlib.Path('saved').write_text(str(number))
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path('ready').touch()
time.sleep(600)
"""


@pytest.fixture
def notes():
    return []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stop_is_one_sigterm_and_rank_0_says_so(run, tmp_path, notes, rank):
    finished, _ = run(TIDY, rank=rank, stop_requested=(tmp_path / "ready").exists, notes=notes)
    assert not finished
    assert (tmp_path / "saved").read_text() == "15"
    said = ("note", "stopping: sent SIGTERM to the script; 5 s until SIGKILL")
    assert notes == ([said] if rank == 0 else [])


def test_a_script_that_ignores_the_stop_is_killed_after_the_grace_time(run, tmp_path, notes):
    deaf = TIDY.replace("signal.SIGTERM, end", "signal.SIGTERM, signal.SIG_IGN")
    started = time.monotonic()
    finished, _ = run(deaf, stop_requested=(tmp_path / "ready").exists, grace_s=0.5, notes=notes)
    assert not finished
    assert time.monotonic() - started < 60
    assert notes == [("warning", "rank 1: the script was killed, 0.5 s after SIGTERM")]


ASKS = TIDY.replace(
    "time.sleep(600)",
    """
from clustertrain import session
while not session.stop_requested(): time.sleep(0.05)
""",
)


@pytest.mark.parametrize("code", [0, 3])
def test_a_script_that_asks_for_requests_gets_no_signal(run, tmp_path, notes, code):
    asked = ASKS + f"print('was told', flush=True)\nsys.exit({code})"
    requested = (tmp_path / "ready").exists
    finished, out = run(asked, rank=0, stop_requested=requested, stop_in_s=lambda: 1, notes=notes)
    assert (finished, out, notes) == (False, "was told\n", [])
    assert not (tmp_path / "saved").exists()


def test_one_that_asked_once_is_killed_after_the_grace_time_without_a_signal(run, tmp_path, notes):
    asks = "from clustertrain import session; session.stop_requested()\n"
    once, ready = TIDY.replace("pathlib.Path('ready')", f"{asks}pathlib.Path('ready')"), tmp_path / "ready"
    options = {"stop_requested": ready.exists, "stop_in_s": lambda: 1.0, "rank": 0, "notes": notes}
    assert not run(once, grace_s=0.5, **options)[0]
    assert not (tmp_path / "saved").exists()
    assert notes == [
        ("note", "stopping: session.stop_requested() is True in the script; 0.5 s until SIGKILL"),
        ("warning", "rank 0: the script was killed, 0.5 s after it was asked to stop"),
    ]
    ready.unlink()
    assert run(once.replace("600", "2"), grace_s=60, **options)[0], "it ended by itself, untold"


def test_the_signal_waits_until_all_ranks_have_found_the_request(run, tmp_path):
    started = time.monotonic()
    run(TIDY, stop_requested=(tmp_path / "ready").exists, stop_in_s=lambda: 1.5)
    assert time.monotonic() - started >= 1.5
    finished, _ = run("print('end')", stop_requested=lambda: True, stop_in_s=lambda: 60)  # it ends by itself
    assert finished


def test_an_error_of_its_own_after_the_stop_is_a_warning(run, notes):
    assert not run("raise OSError('the disk is full')", stop_exists=lambda: True, notes=notes)[0]
    assert notes == [
        (
            "warning",
            "rank 1, train.py:1: OSError: the disk is full\nThe script ended with it after the stop request.",
        )
    ]


def test_its_output_comes_through_as_it_is_written(tmp_path):
    """A progress bar has no newline for hours; and bytes that are no text stay as they are."""
    (tmp_path / "train.py").write_text(
        "import os, sys, time\n"
        "print('10%', end='\\r', flush=True)\n"
        "os.write(2, b'\\xff\\x00')\n"
        "print(os.environ['PYTHONUNBUFFERED'], end='')\n"
        "time.sleep(600)\n"
    )
    worker = start_worker(tmp_path, stdout=subprocess.PIPE)
    wanted, read = b"10%\r\xff\x001", b""
    while len(read) < len(wanted):
        more = worker.stdout.read1()
        assert more, read
        read += more
    worker.kill()
    worker.communicate()
    assert read == wanted


def test_a_script_dies_with_a_killed_worker(tmp_path):
    (tmp_path / "train.py").write_text("import pathlib, time; pathlib.Path('up').touch(); time.sleep(600)")
    before = set(living_descendants())
    worker = start_worker(tmp_path)
    assert wait_until((tmp_path / "up").exists, 20, 0.01)
    assert len(left_after(0, before)) == 2
    worker.kill()
    worker.wait()
    assert left_after(2, before) == {}


@pytest.mark.parametrize("has_own_session", [False, True])
def test_a_process_that_it_leaves_is_killed_and_not_waited_for(run, notes, monkeypatch, has_own_session):
    """Such as a process of mp.spawn, or TensorBoard: it has the output of the script."""
    monkeypatch.setattr(script, "OTHERS_END_S", 0.5)
    start = f"subprocess.Popen(['sleep', '60'], start_new_session={has_own_session})"
    leaves = f"import subprocess\nprint({start}.pid)"
    finished, out = run(leaves, notes=notes)
    assert finished
    said = "rank 1: a process that the script started ran on after its end, and was killed"
    assert notes == [("warning", said)]
    assert wait_until(lambda: process_state(int(out)) in (None, "Z (zombie)"), 20, 0.02)


def test_a_full_disk_of_its_log_ends_it(tmp_path):
    (tmp_path / "train.py").write_text("while True: print('x' * 1000)")
    with Path("/dev/full").open("wb") as full:
        worker = start_worker(tmp_path, stdout=full, stderr=subprocess.PIPE)
    try:
        said = worker.communicate(timeout=60)[1]
    finally:
        worker.kill()
    assert b"No space left on device" in said


def test_a_child_whose_worker_ended_before_it_began_does_nothing(tmp_path):
    program = [sys.executable, "-c", "open('ran', 'w')"]
    for parent, runs in ((os.getppid(), False), (os.getpid(), True)):
        start = [sys.executable, "-I", "-S", "-c", script._END_WITH_PARENT, str(parent)]
        ran([*start, *program], code=0, cwd=tmp_path)
        assert (tmp_path / "ran").exists() == runs


def test_the_environment_is_torchruns(tmp_path):
    """Compared with what torchrun itself sets, name by name."""
    script = tmp_path / "names.py"
    script.write_text("import os; print('NAMES', *sorted(n for n in os.environ))")
    done = ran(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", str(script)],
        code=0,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # torchrun leaves its own files behind
    )
    names = next(line for line in done.stdout.splitlines() if line.startswith("NAMES")).split()[1:]
    set_by_torchrun = set(names) - set(os.environ) - {"MASTER_ADDR", "MASTER_PORT"}
    ours = torchrun_environment(ONLY_RANK, restart=0, retries=3, run_id="a")
    wanted = {
        n
        for n in set_by_torchrun
        if n.startswith(("TORCHELASTIC_", "ROLE_", "GROUP_")) or "RANK" in n or "WORLD" in n
    }
    assert wanted - set(ours) == set(), "torchrun sets more than we do"
    assert Path(script).exists()
