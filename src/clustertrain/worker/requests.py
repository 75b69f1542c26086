"""Requests to a running training: `stop` and `save`, files in the attempt's folder."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from clustertrain.errors import StorageError
from clustertrain.run.folder import Attempt

LOOK_EVERY_S = 0.2
LOOK_EVERY_S_ON_S3 = 2.0


class RequestPoller:
    """Looks for requests in a thread of its own: a storage that is slow or down never delays a step.

    A request from this node is found after 0.2 s, one from elsewhere through S3 after 2 s.
    """

    def __init__(self, attempt: Attempt) -> None:
        run = attempt.run
        self._keys = {"stop": attempt.stop.key, "save": attempt.save.key}
        self._near = run.spool
        self._far = run.with_patience(0).store if run.is_spooled else None
        self._remote_requests: dict[str, bytes | None] = {}
        self._far_looked_at: dict[str, float] = {}
        self._served_save = self._look("save")
        self._stop = False
        self._save = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="requests", daemon=True)

    def __enter__(self) -> RequestPoller:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def take(self) -> tuple[bool, bool]:
        """(stop, save): whether a stop was requested, and whether a save was requested since the last call.
        Reads no file."""
        save, self._save = self._save, False
        return self._stop, save

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self._stop = self._stop or self._look("stop") is not None
            request = self._look("save")
            if request is not None and request != self._served_save:
                self._served_save, self._save = request, True

    def _look(self, name: str) -> bytes | None:
        """The bytes of the request; None where there is none, or the storage does not answer."""
        with suppress(StorageError):  # the next save reports the same fault
            near = self._near.read_or_none(self._keys[name])
            if near is not None:
                return near
        return self._look_far(name)

    def _look_far(self, name: str) -> bytes | None:
        now = time.monotonic()
        if self._far is not None and now - self._far_looked_at.get(name, float("-inf")) >= LOOK_EVERY_S_ON_S3:
            self._far_looked_at[name] = now
            with suppress(StorageError):  # as above
                self._remote_requests[name] = self._far.read_or_none(self._keys[name])
        return self._remote_requests.get(name)
