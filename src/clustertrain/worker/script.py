"""The entry point `script`: each Ray Train worker starts the unchanged torchrun script as a child process.

A child process rather than runpy in the worker: the train function runs in a thread, where signal.signal
fails, and Ray's patch of print would affect the script. The child gets torchrun's environment, handles its
own signals and ends with its own exit code.
"""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clustertrain.errors import ClusterTrainError, JobError
from clustertrain.worker.error_report import ErrorReport, printable
from clustertrain.worker.printed_traceback import last_exception

# In a session of its own the script would outlive a killed worker. So the child sets SIGKILL as the signal
# for its parent's death (prctl 1 is PR_SET_PDEATHSIG) and then executes the script. A preexec_fn would run
# Python code between fork and exec in a process with many threads.
_END_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.execv(sys.argv[1], sys.argv[1:])
"""
_LAST_LINES = 8  # in a message
_LINE_CHARACTERS = 500
_KEPT_LINES, _KEPT_CHARACTERS = 400, 10_000  # to find the traceback in; characters of each line


class ScriptFailed(ClusterTrainError):
    """A script ended with a code other than 0, or by a signal.

    `last_line`: of its output. `report`: of the exception that ended it, if its output ends with a traceback.
    """

    def __init__(
        self,
        text: str,
        exit_code: int | None,
        signal_number: int | None,
        last_line: str = "",
        report: ErrorReport | None = None,
    ) -> None:
        super().__init__(text)
        self.script_exit_code = exit_code
        self.signal_number = signal_number
        self.last_line = last_line
        self.report = report

    def __reduce__(self) -> tuple[type[ScriptFailed], tuple[Any, ...]]:
        return ScriptFailed, (
            str(self),
            self.script_exit_code,
            self.signal_number,
            self.last_line,
            self.report,
        )


def torchrun_environment(
    *,
    rank: int,
    local_rank: int,
    world_size: int,
    local_world_size: int,
    group_rank: int,
    restart: int,
    retries: int,
    run_id: str,
) -> dict[str, str]:
    """torchrun's variables for a worker, except MASTER_ADDR and MASTER_PORT, which Ray Train has set.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_RANK": str(group_rank),
        "GROUP_WORLD_SIZE": str(max(1, world_size // max(1, local_world_size))),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RESTART_COUNT": str(restart),
        "TORCHELASTIC_MAX_RESTARTS": str(retries),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_ERROR_FILE": "",
    }


def run_script(
    script: Path,
    args: Sequence[str],
    *,
    rank: int,
    environment: Mapping[str, str],
    cwd: Path,
    stop_requested: Callable[[], bool],
    grace_s: float,
) -> bool:
    """Run the script to its end; its output goes to this process's stdout. Returns False if it was stopped.

    A stop request sends SIGTERM once, and SIGKILL after `grace_s` seconds.

    Raises:
        JobError: there is no such script.
        ScriptFailed: it ended with a code other than 0; the text has the code, and its exception or its last
            lines.
    """
    if not script.is_file():
        raise JobError(f"script: {script} does not exist.\nThe path is relative to `code`, {cwd}.")
    child_environment = {**os.environ, **environment}
    child_environment.pop("PYTHONBREAKPOINT", None)  # set by Ray for its own debugger
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _END_WITH_PARENT, sys.executable, "-u", str(script), *args],
        cwd=cwd,
        env=child_environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # signals to the worker's process group do not reach it
    )
    last_lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
    stopped = threading.Event()
    watcher = threading.Thread(
        target=_stop_on_request, args=(child, stop_requested, grace_s, stopped), daemon=True
    )
    watcher.start()
    # The thread that started the child reads and waits: PDEATHSIG fires when that thread ends.
    with child:
        for raw in child.stdout or ():
            line = raw.decode(errors="replace")
            sys.stdout.write(line)
            sys.stdout.flush()
            last_lines.append(line.rstrip()[-_KEPT_CHARACTERS:])
        code = child.wait()
    watcher.join()
    if stopped.is_set():
        return False
    if code != 0:
        raise _failure(script, rank, code, last_lines, str(cwd))
    return True


def _failure(script: Path, rank: int, code: int, output: Sequence[str], folder: str) -> ScriptFailed:
    if code < 0:
        ended = f"by signal {-code} ({signal.Signals(-code).name})"
        exit_code, signal_number = None, -code
    else:
        ended, exit_code, signal_number = f"with exit code {code}", code, None
    # Python ends with code 1 after an exception; with any other code, a traceback in the output is no cause.
    report = last_exception(output, folder, lines_after=_LAST_LINES) if code == 1 else None
    shown = [line for line in map(_as_on_a_terminal, output) if line][-_LAST_LINES:]
    if report is not None:
        text = f"{report.text(f'rank {rank}')}\n{script.name} ended {ended}."
    else:
        tail = "\n".join(f"  | {line}" for line in shown) or "  | (it printed nothing)"
        text = f"{script.name} ended {ended} on rank {rank}; its last lines:\n{tail}"
    return ScriptFailed(text, exit_code, signal_number, shown[-1] if shown else "", report)


def _as_on_a_terminal(line: str) -> str:
    """The line without what a progress bar has overwritten, in printable characters."""
    return printable(line.rpartition("\r")[2]).rstrip()[:_LINE_CHARACTERS]


def _stop_on_request(
    child: subprocess.Popen[bytes],
    stop_requested: Callable[[], bool],
    grace_s: float,
    stopped: threading.Event,
) -> None:
    while child.poll() is None:
        if stop_requested():
            stopped.set()
            child.terminate()
            try:
                child.wait(grace_s)
            except subprocess.TimeoutExpired:
                child.kill()
            return
        try:
            child.wait(0.25)
        except subprocess.TimeoutExpired:
            continue
