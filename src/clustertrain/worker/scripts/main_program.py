"""A script or a module as the main program of a process that runs already, as `python` would run it."""

from __future__ import annotations

import atexit
import builtins
import ctypes
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import NoReturn


def run_as_main(arguments: Sequence[str]) -> None:
    """Run what `python ARGUMENTS` runs: a script, or `-m` and a module.

    Raises:
        BaseException: the program's own.
    """
    is_module = arguments[0] == "-m"
    sys.argv = [*arguments[is_module:]]
    # It stays __main__, for what runs at the end of the process, and for the processes of multiprocessing.
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if is_module:
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]  # what python -m calls
        return
    path = arguments[0]
    source = Path(path).read_bytes()
    if b"\0" in source:  # compiled, or an archive
        runpy.run_path(path, run_name="__main__")
        return
    sys.path.insert(0, str(Path(path).resolve().parent))
    main.__loader__ = SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None)
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def exit_after(run: Callable[[], object]) -> NoReturn:
    """Call `run`, and end this process as Python does after a main program: with its exit code, its
    traceback, its threads and what it has registered with atexit. No caller of this function goes on.
    """
    code: object = None
    try:
        try:
            run()
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001  Python shows all
            code = 1
            frames = error.__traceback__
            for _ in range(2):  # without those of this file
                frames = frames and frames.tb_next
            sys.excepthook(type(error), error.with_traceback(frames), frames)
            if isinstance(error, KeyboardInterrupt):
                threading._shutdown()  # type: ignore[attr-defined]  # what Py_Exit calls below
                atexit._run_exitfuncs()
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
    except SystemExit as ended:  # of the program, or of its excepthook
        code = ended.code
    except BaseException:  # noqa: BLE001  of its excepthook
        traceback.print_exc()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    # sys.exit would unwind the frames below, which are another program's.
    ctypes.pythonapi.Py_Exit(code or 0)
    raise AssertionError
