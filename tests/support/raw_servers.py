"""Servers on loopback that send any bytes as an answer."""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from socketserver import BaseRequestHandler

from support import web_server as web

Lie = bytes | Callable[[], Iterable[bytes]]


def server(*answers: Lie) -> AbstractContextManager[tuple[str, list[str]]]:
    """The URL of a server, and its requests. An answer is bytes, or a function that returns pieces, of which
    one is sent every 20 ms. The last answer is for all further requests."""
    return answering(itertools.chain(answers, itertools.repeat(answers[-1])))


@contextmanager
def answering(answers: Iterator[Lie]) -> Iterator[tuple[str, list[str]]]:
    """The same with the next of these answers to each request."""
    requests: list[str] = []
    is_over, order = threading.Event(), threading.Lock()

    class Liar(BaseRequestHandler):
        def handle(self):
            head = b""
            while b"\r\n\r\n" not in head and (data := self.request.recv(4096)):
                head += data
            with order:
                requests.append(head.decode())
                answer = next(answers)
            with suppress(OSError):  # the client has left
                for piece in [answer] if isinstance(answer, bytes) else answer():
                    self.request.sendall(piece)
                    if not isinstance(answer, bytes) and is_over.wait(0.02):
                        return

    liar = web.SocketServer(("127.0.0.1", 0), Liar)
    with web.answering(liar):
        try:
            yield f"http://127.0.0.1:{liar.server_address[1]}/f", requests
        finally:
            is_over.set()
