"""A real SIGKILL at every point of a piece of work that touches the file system."""

import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator

_POINTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.chmod", "os.scandir"}


def killed_at_every_point(
    prepare: Callable[[], None], work: Callable[[], None], *, stride: int = 1
) -> Iterator[int]:
    """Runs `work` in a child process again and again, killed just before its 1st, 2nd, 3rd, … operation on
    files, until it comes through; yields after every kill. `prepare` runs before each, in this process.
    """
    for point in itertools.count(1, stride):
        prepare()
        if not _is_killed(work, point):
            return
        yield point


def _is_killed(work: Callable[[], None], point: int) -> bool:
    pid = os.fork()
    if pid == 0:
        _work_until(work, point)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the work itself failed; see above"
    return False


def _work_until(work: Callable[[], None], point: int) -> None:
    left = point

    def count(event: str, args: tuple) -> None:
        nonlocal left
        if event in _POINTS and not (event == "open" and str(args[0]).startswith("/proc")):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(count)
        work()
    except BaseException:  # noqa: BLE001  a forked child must never return into the tests
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
