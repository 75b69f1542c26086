"""The entry points `script` and `module`: each worker starts a torchrun script as a process of its own.

The process gets torchrun's environment, handles its own signals and ends with its own exit code.
"""

from __future__ import annotations

import collections
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from clustertrain.errors import ClusterTrainError
from clustertrain.node.installed import how_to_import_in
from clustertrain.node.processes import own_processes
from clustertrain.node.signals import signal_text
from clustertrain.observe.explain.first_cause import shows_lost_peer
from clustertrain.worker.code.error_report import ErrorReport, printable
from clustertrain.worker.code.printed_traceback import last_exception
from clustertrain.worker.place import Place
from clustertrain.worker.scripts.request_page import RequestPage
from clustertrain.worker.scripts.script_command import Program

if TYPE_CHECKING:
    from clustertrain.worker.rank import WorkerRun

# In a session of its own the script would outlive a killed worker. So the child sets SIGKILL as the signal
# for its parent's death (prctl 1 is PR_SET_PDEATHSIG) and then executes the script. A preexec_fn would run
# Python code between fork and exec in a process with many threads.
_END_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):  # else it had ended before
    os.execv(sys.argv[2], sys.argv[2:])
"""
# `python -m` would import from the working directory first; $PYTHONPATH begins with the code.
_MODULE = "import runpy, sys; del sys.path[0], sys.argv[0]; runpy._run_module_as_main(sys.argv[0])"
_LAST_LINES = 8  # in a message
_LINE_CHARACTERS = 500
_KEPT_LINES, _KEPT_CHARACTERS = 400, 10_000  # to find the traceback in; characters of each line
_MOST_BYTES = 4 * _KEPT_CHARACTERS  # of the beginning and of the end of a line
_BLOCK_BYTES = 1 << 16
_LOOK_S = 0.25  # how often the end of a script and a stop request are looked for
OTHERS_END_S = 10.0  # for its other processes, after it: those of a data loader look every 5 s
_STDOUT = 1  # setup.py has made it the rank's log

_LACKS_CLUSTERTRAIN = re.compile("ModuleNotFoundError: No module named 'clustertrain'")


class ScriptFailed(ClusterTrainError):
    """A script ended with a code other than 0, or by a signal.

    `returncode`: as subprocess.Popen's, negative after a signal. `last_line`: of its output. `report`: of the
    exception that ended it, if its output ends with a traceback.
    """

    def __init__(
        self, text: str, returncode: int = 1, last_line: str = "", report: ErrorReport | None = None
    ) -> None:
        super().__init__(text)
        self.returncode, self.last_line, self.report = returncode, last_line, report


def torchrun_environment(place: Place, *, restart: int, retries: int, run_id: str) -> dict[str, str]:
    """Return torchrun's variables for a worker, except MASTER_ADDR and MASTER_PORT, which are set already.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_RANK": str(place.node_rank),
        "GROUP_WORLD_SIZE": str(max(1, place.world_size // max(1, place.local_world_size))),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RESTART_COUNT": str(restart),
        "TORCHELASTIC_MAX_RESTARTS": str(retries),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_ERROR_FILE": "",
    }


def run_script(
    program: Program,
    run: WorkerRun,
    *,
    environment: Mapping[str, str],
    cwd: Path,
    code_folder: Path,
    grace_s: float,
) -> bool:
    """Run the program to its end; its output goes to this process's stdout. Returns False if it was stopped.

    A stop request sends SIGTERM once, and SIGKILL after `grace_s` seconds; a script that asks for requests
    itself (session.stop_requested) gets no SIGTERM. How the script ends after a request is not a failure:
    most often it has lost the ranks that ended before it.

    Args:
        run: asked four times a second for a request to stop; it takes what the script logs and prints.
        code_folder: of the user's code; `cwd` may be another.

    Raises:
        ScriptFailed: it ended with a code other than 0; the text has the code, and its exception or its last
            lines.
    """
    with RequestPage() as page:
        child_environment = {"PYTHONUNBUFFERED": "1", **os.environ, **environment, **page.variables}
        child_environment.pop("PYTHONBREAKPOINT", None)  # set by Ray for its own debugger
        child = _start(program, child_environment, cwd)
        # The thread that started the child reads and waits: PDEATHSIG fires when that thread ends.
        with child, ThreadPoolExecutor(2) as watchers:
            ended = watchers.submit(_stop_on_request, child, run, page, grace_s)
            followed = watchers.submit(_follow, child, run.follow)
            try:
                last_lines = _passed_on(_blocks(child, run), run.strike.printed)
            except BaseException:  # of a full disk: without a reader the script would wait for ever
                child.send_signal(signal.SIGKILL)
                raise
            code = child.wait()
        followed.result()
        stopped = ended.result() or page.is_told
    # Python ends with code 1 after an exception; with any other code, a traceback in the output is no cause.
    report = last_exception(last_lines, str(code_folder), lines_after=_LAST_LINES) if code == 1 else None
    if stopped or (code != 0 and run.stop_exists()):
        if report is not None and not shows_lost_peer(report.whole_message()):
            own = report.text(f"rank {run.rank}")
            run.note("warning", f"{own}\nThe script ended with it after the stop request.")
        return False
    if code != 0:
        raise _failure(program, run.rank, code, last_lines, report)
    return True


def _start(program: Program, environment: dict[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    argv = program.argv
    if "-m" in argv[2:3]:
        argv = (*argv[:2], "-c", _MODULE, *argv[3:])
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _END_WITH_PARENT, str(os.getpid()), *argv],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # signals to the worker's process group do not reach it
    )


def _blocks(child: subprocess.Popen[bytes], run: WorkerRun) -> Iterator[bytes]:
    """Yield what the script and its processes print, as it comes.

    Processes that it leaves are killed soon after its end: they may hold a GPU, and one that never ends would
    keep this rank from ending.
    """
    output, ended_s = cast("IO[bytes]", child.stdout).fileno(), math.inf
    while time.monotonic() - ended_s < OTHERS_END_S:
        if ended_s == math.inf and _ends_within(child, 0):
            ended_s = time.monotonic()
        if select.select([output], [], [], _LOOK_S)[0]:
            if not (block := os.read(output, _BLOCK_BYTES)):
                return
            yield block
    with suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    pipe = Path(f"/proc/self/fd/{output}").readlink()
    for pid in own_processes():  # one may have a session of its own
        with suppress(OSError):  # it ended meanwhile
            if any(fd.readlink() == pipe for fd in Path(f"/proc/{pid}/fd").iterdir()):
                os.kill(pid, signal.SIGKILL)
    run.note(
        "warning", f"rank {run.rank}: a process that the script started ran on after its end, and was killed"
    )


def _passed_on(output: Iterator[bytes], printed: Callable[[str], None]) -> list[str]:
    """Copy the output to stdout as it comes; return its last lines.

    A progress bar is a line without an end.
    """
    lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
    unfinished = b""
    sys.stdout.flush()
    for block in output:
        *finished, unfinished = (unfinished + block).split(b"\n")
        lines.extend(map(_kept, finished))
        if len(unfinished) > 2 * _MOST_BYTES:  # of a bar that has drawn itself for hours
            unfinished = unfinished[:_MOST_BYTES] + unfinished[-_MOST_BYTES:]
        rest = block
        while rest:
            rest = rest[os.write(_STDOUT, rest) :]
        for line in finished:
            printed(_kept(line))
    return [*lines, _kept(unfinished)] if unfinished else list(lines)


def _kept(line: bytes) -> str:
    """Return the last state of a progress bar; of another line its beginning.

    The beginning names the class of an exception.
    """
    text = line.decode(errors="replace").rstrip()
    return text[-_KEPT_CHARACTERS:] if "\r" in text else text[:_KEPT_CHARACTERS]


def _failure(
    program: Program, rank: int, code: int, output: Sequence[str], report: ErrorReport | None
) -> ScriptFailed:
    name, ended = program.name, f"by signal {signal_text(-code)}" if code < 0 else f"with exit code {code}"
    shown = [line for line in map(_as_on_a_terminal, output) if line][-_LAST_LINES:]
    if report is not None:
        text = f"{report.text(f'rank {rank}')}\n{name} ended {ended}."
        if _LACKS_CLUSTERTRAIN.match(report.whole_message()):
            text += f"\nTo import it there: {how_to_import_in(program.argv[0])}"
    else:
        tail = "\n".join(f"  | {line}" for line in shown) or "  | (it printed nothing)"
        text = f"{name} ended {ended} on rank {rank}.\nIts last lines:\n{tail}"
    return ScriptFailed(text, code, shown[-1] if shown else "", report)


def _as_on_a_terminal(line: str) -> str:
    """Return the line without what a progress bar has overwritten, in printable characters."""
    return printable(line.rpartition("\r")[2]).rstrip()[:_LINE_CHARACTERS]


def _follow(child: subprocess.Popen[bytes], follow: Callable[[], None]) -> None:
    while not _ends_within(child, _LOOK_S):
        follow()
    follow()


def _stop_on_request(
    child: subprocess.Popen[bytes], run: WorkerRun, page: RequestPage, grace_s: float
) -> bool:
    """Stop the script when that is requested.

    Return False if it ended before, or was only asked to.
    """
    while not run.requests().stop:
        if _ends_within(child, _LOOK_S):
            return False
    page.request_stop()
    if _ends_within(child, run.stop_in_s()):
        return False
    is_asked, text = page.is_asked, "sent SIGTERM to the script"
    if is_asked:
        text = "session.stop_requested() is True in the script"
    else:
        child.send_signal(signal.SIGTERM)
    if run.rank == 0:
        run.note("note", f"stopping: {text}; {grace_s:g} s until SIGKILL")
    if not _ends_within(child, grace_s):
        child.send_signal(signal.SIGKILL)
        after = "it was asked to stop" if is_asked else "SIGTERM"
        run.note("warning", f"rank {run.rank}: the script was killed, {grace_s:g} s after {after}")
        return True
    return not is_asked


def _ends_within(child: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
