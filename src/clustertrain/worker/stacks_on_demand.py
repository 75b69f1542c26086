"""Answers `clustertrain stacks`: a request file in the folder of the restart, and a file of each rank.

A thread looks for the request all the time, also while the rank makes progress. Code that holds the
interpreter's lock keeps it from running: the command then shows the state of the process instead.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from traceback import walk_stack

from clustertrain.errors import StorageError
from clustertrain.run_files.folder.run_dir import Restart


def answer_requests(restart: Restart, rank: int, world_size: int) -> None:
    """Answer each request once, in a thread of its own."""
    run = restart.attempt.run.with_patience(0)
    restart = run.attempt(restart.attempt.n).restart(restart.number)

    def watch() -> None:
        answered = ""
        while True:
            time.sleep(restart.look_for_stacks_every_s(world_size))
            with suppress(OSError, StorageError):  # the command names the ranks that did not answer
                request = restart.stacks_request.read()
                if request is not None and request.id != answered:
                    answered = request.id
                    run.store.write_atomic(f"{restart.stacks_answers_key(answered)}/{rank}", _all_threads())

    threading.Thread(target=watch, name="stacks-on-demand", daemon=True).start()


def _all_threads() -> bytes:
    """Return the stacks of all threads in the format of faulthandler, that of the main thread last.

    faulthandler itself writes 100 threads at most, and of more threads not the main one.
    """
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda each: each[0] == main)
    stacks = [
        [
            f'  File "{at.f_code.co_filename}", line {line} in {at.f_code.co_name}'
            for at, line in walk_stack(each)
        ]
        for _, each in frames
    ]
    return "\n\n".join("\n".join(["Thread (most recent call first):", *stack]) for stack in stacks).encode()
