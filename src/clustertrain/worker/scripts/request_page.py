"""The memory through which the process of a script knows of a request to stop: see `ScriptSession`."""

from __future__ import annotations

import mmap
import os

from clustertrain.node import variables
from clustertrain.session import ASKED, PAGE_BYTES, REQUESTED, TOLD


class RequestPage:
    """A file in memory, which ends with this process. A script opens it by its path in /proc."""

    def __init__(self) -> None:
        self._file = os.memfd_create("requests")
        os.truncate(self._file, PAGE_BYTES)
        self._page = mmap.mmap(self._file, PAGE_BYTES)

    def __enter__(self) -> RequestPage:
        return self

    def __exit__(self, *exc: object) -> None:
        self._page.close()
        os.close(self._file)

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the script's environment that name this page."""
        return {variables.REQUESTS: f"/proc/{os.getpid()}/fd/{self._file}"}

    def request_stop(self) -> None:
        self._page[REQUESTED] = True

    @property
    def is_asked(self) -> bool:
        """Whether the script asks for requests, so that it needs no signal."""
        return bool(self._page[ASKED])

    @property
    def is_told(self) -> bool:
        """Whether the script knows that it has to stop."""
        return bool(self._page[TOLD])
