"""Requests to a running training, which are files.

`stop` and `save` are in the attempt's folder. `resize` is in the folder of one start of the workers, which
then save and return as for a stop.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress

from clustertrain.errors import StorageError
from clustertrain.run_files.folder.run_dir import Attempt, Restart
from clustertrain.run_files.records.requests import SaveRequest
from clustertrain.storage import Store
from clustertrain.storage.record_file import decoded
from clustertrain.training.ranks.host import Requests

POLL_S = 0.2
POLL_S_ON_S3 = 2.0
_MARGIN_S = 0.4  # for the processes that read the result of a poll


def wait_for_all_s(attempt: Attempt) -> float:
    """Return the seconds until every rank has found a stop request that this rank has found.

    The processes of a script get their signals together: the first to end would be a lost peer to the others,
    before they save.

    Clocks may differ, so it is never longer than a poll takes.
    """
    run = attempt.run
    within_s = POLL_S + _MARGIN_S + (POLL_S_ON_S3 if run.is_spooled else 0.0)
    with suppress(StorageError):
        request = run.with_patience(0).attempt(attempt.n).stop.read()
        if request is not None:
            return min(within_s, max(0.0, request.time + within_s - time.time()))
    return 0.0


class RequestPoller:
    """Polls for requests in a separate thread, so that a slow or unreachable storage delays no step.

    `resizable`: the start of the workers that may get a request to return, because there is room for more.
    `claimed_s`: when this start was claimed. What was requested before was for an earlier one.
    A request from this node is found after 0.2 s, one from elsewhere through S3 after 2 s.
    """

    def __init__(
        self, attempt: Attempt, resizable: Restart | None = None, claimed_s: float = math.inf
    ) -> None:
        run = attempt.run
        self._keys = {"stop": attempt.stop.key, "save": attempt.save.key}
        if resizable is not None:
            self._keys["resize"] = resizable.resize.key
        self._local = run.spool
        self._remote = run.with_patience(0).store if run.is_spooled else None
        self._polled_remote_s = float("-inf")
        self._ends: set[str] = set()  # the requests to end that were found
        self._served: set[bytes] = set()  # the requests for a save
        self._save = False
        self._poll_all(since_s=claimed_s)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="requests", daemon=True)

    def __enter__(self) -> RequestPoller:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def take(self) -> Requests:
        """Return whether a stop of this start of the workers was requested, and whether a save was.

        Only a request for a save since the last call counts. This reads no file.
        """
        save, self._save = self._save, False
        return Requests(bool(self._ends), save)

    def is_stopping(self) -> bool:
        """Return whether a request to end was found."""
        return bool(self._ends)

    @property
    def is_resize(self) -> bool:
        """Whether this start of the workers ends only for another number of them."""
        return self._ends == {"resize"}

    def _watch(self) -> None:
        while not self._ended.wait(POLL_S):
            self._poll_all()

    def _poll_all(self, since_s: float = -math.inf) -> None:
        self._poll(self._local, since_s)
        if self._remote is not None and time.monotonic() - self._polled_remote_s >= POLL_S_ON_S3:
            self._polled_remote_s = time.monotonic()
            self._poll(self._remote, since_s)

    def _poll(self, store: Store, since_s: float) -> None:
        with suppress(StorageError):  # the next save reports the same fault
            for name in self._keys.keys() - self._ends:
                request = store.read_or_none(self._keys[name])
                if request is None or request in self._served:
                    continue
                if name != "save":
                    self._ends.add(name)
                    continue
                self._served.add(request)
                self._save |= decoded(SaveRequest, request, self._keys[name]).time >= since_s
