import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clustertrain.supervise.private_folder import memory_folder, private_folder
from clustertrain.supervise.process import Guarded
from support.commands import ran
from support.leftovers import children, kill_together, left_after, living_descendants

pytestmark = pytest.mark.slow

# A daemon as Ray makes them: in a session of its own, its parent gone.
DAEMON = "setsid sh -c 'sleep 600 & sleep 600' & "


@pytest.fixture
def start(tmp_path):
    """Starts a guardian over a shell command; returns it."""
    started = []

    def start_guardian(shell: str) -> subprocess.Popen:
        (tmp_path / "temp").mkdir(mode=0o700, exist_ok=True)
        arguments = [
            sys.executable,
            "-m",
            "clustertrain.supervise.guardian",
            str(tmp_path / "temp"),
            str(tmp_path / "log"),
        ]
        guardian = subprocess.Popen([*arguments, "sh", "-c", shell], stdin=subprocess.PIPE)
        started.append(guardian)
        return guardian

    yield start_guardian
    for guardian in started:
        guardian.stdin.close()
        guardian.wait(10)


def wait_for(path: Path) -> None:
    ends = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < ends, f"{path} never came"
        time.sleep(0.01)


# The kernel cuts a name at 15 bytes, within a character as well.
NAMES_ITSELF = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\xd0 odd'); time.sleep(600)"


@pytest.mark.parametrize(
    ("shell", "code"),
    [
        ("exit 7", 7),
        ("kill -9 $$", 128 + signal.SIGKILL),
        (f"{DAEMON} exit 0", 0),
        (f'{sys.executable} -c "{NAMES_ITSELF}" & sleep 2; exit 0', 0),
    ],
    ids=["exit", "signal", "daemon", "odd name"],
)
def test_passes_on_the_exit_code_and_leaves_neither_processes_nor_the_folder(start, tmp_path, shell, code):
    before = set(living_descendants())
    assert start(f"echo hello; {shell}").wait(60) == code
    assert left_after(0, before) == {}
    assert (tmp_path / "log").read_text() == "hello\n"
    assert not (tmp_path / "temp").exists()


def test_the_exit_code_is_known_where_children_are_ignored(start):
    """As some daemons do for all that they start."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    guardian = start("sleep 0.5; exit 7")
    signal.signal(signal.SIGCHLD, before)
    assert guardian.wait(10) == 7


@pytest.mark.parametrize("victims", [["launcher"], ["launcher", "first"], ["launcher", "second"], ["second"]])
def test_everything_ends_whoever_is_killed_together(tmp_path, victims):
    """A real launcher with its two guardians."""
    before = set(living_descendants())
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time\n"
            "g = subprocess.Popen([sys.executable, '-m', 'clustertrain.supervise.guardian',"
            f" {str(tmp_path / 'temp')!r},"
            f" {str(tmp_path / 'log')!r}, 'sh', '-c', {DAEMON + f'touch {tmp_path}/up; sleep 600'!r}],"
            " stdin=subprocess.PIPE)\n"
            "g.wait()",
        ]
    )
    wait_for(tmp_path / "up")
    (first,) = children(launcher.pid)
    (second,) = children(first)
    pids = [{"launcher": launcher.pid, "first": first, "second": second}[victim] for victim in victims]
    kill_together(*pids)
    launcher.wait(60)
    assert left_after(60, before) == {}


def test_the_second_guardian_ends_everything_before_the_end_of_the_first_is_reported(tmp_path):
    private = private_folder()
    before = set(living_descendants())
    command = ["sh", "-c", DAEMON + f"touch {tmp_path}/up; sleep 600"]
    guarded = Guarded(command, tmp_path / "log", private, os.environ)
    wait_for(tmp_path / "up")
    (first,) = (pid for pid in children(os.getpid()) if pid in left_after(0, before))
    os.kill(first, signal.SIGKILL)
    assert guarded.end() == -signal.SIGKILL
    assert left_after(10, before) == {}
    assert not private.exists()
    assert not memory_folder(private).exists()


def test_signals_of_the_terminal_do_not_end_the_guardian(start, tmp_path):
    guardian = start(f"touch {tmp_path}/up; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 3")
    wait_for(tmp_path / "up")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        os.kill(guardian.pid, number)
    (tmp_path / "go").touch()
    assert guardian.wait(10) == 3


WITHOUT_AN_EFFECT_OF_KILLS = """
import os, subprocess
from clustertrain.supervise import guardian
kill, guardian._KILLED_WITHIN_S = os.kill, 0.3
stuck = subprocess.Popen(["sleep", "600"])
os.kill = lambda pid, number: None
guardian.kill_descendants()
print(stuck.poll())
kill(stuck.pid, 9)
"""


def test_a_process_that_hangs_in_the_kernel_is_left():
    """A kill has no effect while it waits for a GPU that is lost, or for a file server."""
    assert ran([sys.executable, "-c", WITHOUT_AN_EFFECT_OF_KILLS], code=0, timeout=60).stdout == "None\n"


OF_TWO_USERS = """
import os, subprocess, sys
from clustertrain.supervise.guardian import kill_descendants
of_root = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
os.setresuid(65534, 65534, 65534)
own = subprocess.Popen(["sleep", "600"])
kill_descendants()
print(of_root.pid, of_root.poll(), own.pid)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes of two users")
def test_a_process_of_another_user_does_not_keep_the_others_alive():
    """As one that sudo has started."""
    of_root, code, own = ran([sys.executable, "-c", OF_TWO_USERS], code=0, timeout=60).stdout.split()
    os.kill(int(of_root), signal.SIGKILL)
    assert code == "None"
    assert not Path("/proc", own).exists()
