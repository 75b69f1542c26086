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

from urllib3 import HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.response import HTTPResponse


class Clock(io.RawIOBase):
    """The bytes of a socket. All reads together wait for `left_s`, and then raise TimeoutError."""

    def __init__(self, connection: socket.socket, bytes_of: Any) -> None:
        self._connection, self._bytes_of = connection, bytes_of
        self.left_s = connection.gettimeout() or 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self.left_s <= 0:
            raise TimeoutError("the time for this answer is over")
        self._connection.settimeout(self.left_s)
        began_at = time.monotonic()
        count: int | None = self._bytes_of.readinto(buffer)
        self.left_s -= time.monotonic() - began_at
        return count

    def close(self) -> None:
        self._bytes_of.close()
        super().close()


class _Timed(HTTPConnection):
    def __str__(self) -> str:  # the errors of urllib3 begin with it
        return f"{self.host}:{self.port}"

    def response_class(self, sock: socket.socket, *args: Any, **named: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        """http.client calls it for each answer, also for that of a proxy to CONNECT."""
        answer = http.client.HTTPResponse(sock, *args, **named)
        self.clock = Clock(sock, answer.fp.detach())
        answer.fp = io.BufferedReader(self.clock)
        return answer

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as urllib3 does
        try:
            return super().getresponse()
        except HTTPError:  # two lengths that differ; urllib3 leaves the socket open
            self.clock.close()
            raise


class _TimedTls(_Timed, HTTPSConnection):
    pass


def timed(manager: PoolManager, url: str) -> PoolManager:
    """The same manager, whose answers for this URL are limited by the `read` timeout of their request, and
    have a clock: `answer.connection.clock`."""
    pool = manager.connection_from_url(url)
    pool.ConnectionCls = _TimedTls if isinstance(pool, HTTPSConnectionPool) else _Timed
    return manager
