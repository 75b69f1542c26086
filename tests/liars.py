"""Servers on loopback that send any bytes as an answer."""

import itertools
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

Lie = bytes | Callable[[], Iterable[bytes]]


def server(*answers: Lie) -> AbstractContextManager[tuple[str, list[str]]]:
    """The URL of a server, and its requests. An answer is bytes, or a function that returns pieces, of which
    one is sent every 20 ms. The last answer is for all further requests."""
    return answering(itertools.chain(answers, itertools.repeat(answers[-1])))


@contextmanager
def answering(answers: Iterator[Lie]) -> Iterator[tuple[str, list[str]]]:
    """The same with the next of these answers to each request."""
    requests: list[str] = []
    is_over, threads = threading.Event(), []
    listener = socket.create_server(("127.0.0.1", 0))

    def handle(connection, answer):
        with connection:
            head = b""
            while b"\r\n\r\n" not in head and (data := connection.recv(4096)):
                head += data
            requests.append(head.decode())
            try:
                for piece in [answer] if isinstance(answer, bytes) else answer():
                    connection.sendall(piece)
                    if not isinstance(answer, bytes) and is_over.wait(0.02):
                        return
            except OSError:
                return  # the client has left

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=handle, args=(connection, next(answers))))
            threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/f", requests
    finally:
        is_over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (acceptor, *threads):
            thread.join()
