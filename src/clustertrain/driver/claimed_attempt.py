"""The attempt that a driver runs. It may be claimed only while the driver imports and starts Ray."""

from __future__ import annotations

import math
import os
import shutil
import sys
import threading
import traceback
from contextlib import ExitStack
from pathlib import Path

from clustertrain.errors import EXIT_DRIVER_FAILED, ClusterTrainError
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.claims import Heartbeat, claim_of
from clustertrain.run.folder import Attempt
from clustertrain.supervise.early_driver import AttemptToCome, StartFolder
from clustertrain.waiting import wait_until

_POLL_S = 0.02


class ClaimedAttempt:
    """The attempt of this driver, and what is known of it before it is claimed.

    Args:
        where: the text of an AttemptRef, or the folder of a driver that starts before the claim.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._is_there, self._at_end = threading.Event(), ExitStack()
        self._folder: StartFolder | None = None
        if where.startswith("{"):
            attempt = AttemptRef.from_text(where).open()
            claim = claim_of(attempt)
            job_yaml = (attempt.run.store.read_or_none(attempt.job_key) or b"").decode()
            self.to_come = AttemptToCome(job_yaml, claim.launcher, claim.world_size)
            return
        self._folder = StartFolder(Path(where))
        to_come = self._folder.to_come.read()
        if to_come is None:
            raise ClusterTrainError(f"{where} names no attempt to come. This is a bug: please report it.")
        self.to_come = to_come

    def begin(self) -> None:
        """Begin the attempt, or wait for its claim in a thread."""
        if self._folder is None:
            self._begin(AttemptRef.from_text(self._where))
            return
        self._folder.prepared.touch()
        threading.Thread(target=self._wait_for_claim, args=(self._folder,), name="claim", daemon=True).start()

    def attempt(self) -> Attempt:
        """The attempt, when it is claimed. If it never is, this process is ended."""
        self._is_there.wait()
        return self._attempt

    def end(self) -> None:
        """End the heartbeat."""
        self._at_end.close()

    def _begin(self, ref: AttemptRef) -> None:
        self._attempt = ref.open()
        self._is_there.set()
        self._at_end.enter_context(Heartbeat(self._attempt))

    def _wait_for_claim(self, folder: StartFolder) -> None:
        wait_until(folder.claimed.exists, math.inf, _POLL_S)
        try:
            if (ref := folder.claimed.read()) is not None:
                _continue_log(folder.log, ref.open().driver_log)
                self._begin(ref)
        except BaseException:  # noqa: BLE001  such as of a full disk: the main thread would wait for ever
            traceback.print_exc()
            os._exit(EXIT_DRIVER_FAILED)


def _continue_log(before: Path, log: Path) -> None:
    """Copy what this process has printed so far to the log of the attempt, and continue it there."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file, before.open("rb") as printed:
        shutil.copyfileobj(printed, file)
        file.flush()
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
        shutil.copyfileobj(printed, file)  # what another thread has printed meanwhile
