"""HTTP connections on which a server has a limited time: for the head of an answer, then for each part of the
body.

The timeouts of urllib3 and http.client limit a single read of the socket. A server that sends one byte per
read, or "100 Continue" for ever, never exceeds them.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.response import HTTPResponse

PART_BYTES = 10 << 10
"""A server has to send this many bytes of a body in the time limit of one answer."""


class Clock:
    """The time that is left for the head of an answer, or for the next part of its body.

    It runs from `start` to `stop`: the time in which the caller writes to a slow disk does not count.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.in_body = False
        self._part_bytes = 0
        self._left_s = limit_s
        self.start(limit_s)

    def start(self, most_s: float) -> None:
        """Start the clock; it ends after `most_s` at the latest."""
        self._ends = time.monotonic() + min(self._left_s, most_s)

    def left_s(self) -> float:
        return self._ends - time.monotonic()

    def stop(self, body_bytes: int) -> None:
        """Stop the clock, after these bytes of the body. A complete part renews the time."""
        self._part_bytes += body_bytes
        self._left_s = self.left_s()
        if not self.in_body or self._part_bytes >= PART_BYTES:
            self._part_bytes, self._left_s = 0, self.limit_s
        self.in_body = True


class _TimedSocket(io.RawIOBase):
    """The bytes of a socket; a read waits for as long as the clock allows, TimeoutError after that."""

    def __init__(self, connection: socket.socket, bytes_of: io.RawIOBase, clock: Clock) -> None:
        self._connection = connection
        self._bytes_of = bytes_of
        self._clock = clock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if (left_s := self._clock.left_s()) <= 0:
            raise TimeoutError("the time for this answer is over")
        self._connection.settimeout(left_s)
        return self._bytes_of.readinto(buffer)

    def close(self) -> None:
        self._bytes_of.close()
        super().close()


class _TimedAnswer(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        self.clock = Clock(sock.gettimeout() or 0.0)
        self.fp = io.BufferedReader(_TimedSocket(sock, self.fp.detach(), self.clock))


class _TimedConnection(HTTPConnection):
    _answer: _TimedAnswer

    def response_class(self, *args: Any, **named: Any) -> _TimedAnswer:  # type: ignore[override]
        """http.client calls it for each answer, also for that of a proxy to CONNECT."""
        self._answer = _TimedAnswer(*args, **named)
        return self._answer

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as urllib3 does
        try:
            answer = super().getresponse()
        except HTTPError:  # two lengths that differ; urllib3 leaves the socket open
            self._answer.close()
            raise
        self._answer.clock.stop(0)
        answer.clock = self._answer.clock  # type: ignore[attr-defined]
        return answer


class _TimedTlsConnection(_TimedConnection, HTTPSConnection):
    pass


class _TimedPool(HTTPConnectionPool):
    ConnectionCls = _TimedConnection


class _TimedTlsPool(HTTPSConnectionPool):
    ConnectionCls = _TimedTlsConnection


def timed(manager: PoolManager) -> PoolManager:
    """The same manager, whose answers are limited by the `read` timeout of their request and have a `clock`
    (see `clock_of`)."""
    manager.pool_classes_by_scheme = {"http": _TimedPool, "https": _TimedTlsPool}
    return manager


def clock_of(answer: Any) -> Clock:
    """The clock of an answer of a timed manager."""
    clock: Clock = answer.clock
    return clock
