"""A real web server on loopback; a test can make its next answers fail."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer, ThreadingTCPServer


@dataclass
class Answer:
    """How one request is answered; the default is a well-behaved server."""

    status: int = 200
    cut_after: int | None = None  # body bytes that go out before the connection is closed
    hold_after: int | None = None  # body bytes that go out before it waits for `Web.go_on`
    ignores_range: bool = False
    ignores_condition: bool = False  # sends the range whatever If-Range says
    says_length: int | None = None
    framing: str = "length"  # or "chunked"
    location: str | None = None
    etag: str | None = None  # instead of the server's own
    shift: int = 0  # of the range that is sent, relative to the requested one


@dataclass
class Web:
    """`answers` are for the next requests, one each; after them all is well."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    etag: str | None = '"one"'
    last_modified: str | None = None
    accepts_ranges: bool = False  # whether it says so
    answers: list[Answer] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)  # of every request, in order
    conditions: list[str | None] = field(default_factory=list)  # their If-Range
    go_on: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving() -> Iterator[Web]:
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            """Say nothing."""

        def do_GET(self):
            web.ranges.append(self.headers["Range"])
            web.conditions.append(self.headers["If-Range"])
            answer = web.answers.pop(0) if web.answers else Answer()
            self.close_connection = True
            body = web.files.get(self.path.partition("?")[0])
            if body is None or answer.status != 200:
                self._status_only(404 if body is None else answer.status, answer)
            else:
                self._send(body, answer)

        def _status_only(self, status, answer):
            self.send_response(status)
            if answer.location:
                self.send_header("Location", answer.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _send(self, body, answer):
            etag = answer.etag or web.etag
            asked = self._range(etag, answer)
            start, end = asked or (0, None)
            if start and start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if asked else 200)
            if asked:
                start, end = start + answer.shift, min(end or len(body), len(body))
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(body)}")
            if etag:
                self.send_header("ETag", etag)
            if web.last_modified:
                self.send_header("Last-Modified", web.last_modified)
            if web.accepts_ranges:
                self.send_header("Accept-Ranges", "bytes")
            rest = memoryview(body)[start:end]
            if answer.framing == "length":
                self.send_header("Content-Length", str(answer.says_length or len(rest)))
            elif answer.framing == "chunked":
                self.send_header("Transfer-Encoding", "chunked")
                rest = b"%x\r\n%s\r\n0\r\n\r\n" % (len(rest), bytes(rest))
            self.end_headers()
            if answer.hold_after is not None:
                self.wfile.write(rest[: answer.hold_after])
                self.wfile.flush()
                web.go_on.wait(60)
                rest = rest[answer.hold_after :]
            self.wfile.write(rest if answer.cut_after is None else rest[: answer.cut_after])

        def _range(self, etag, answer):
            """(first byte, end or None) of what is sent, None for the whole."""
            asked, condition = self.headers["Range"], self.headers["If-Range"]
            if asked is None or answer.ignores_range:
                return None
            if not answer.ignores_condition and condition not in (None, etag, web.last_modified):
                return None
            first, _, last = asked.removeprefix("bytes=").partition("-")
            return int(first), int(last) + 1 if last else None

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request, client_address):
            """A client that was killed is what these tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    web.url = f"http://127.0.0.1:{server.server_port}"
    with answering(server):
        try:
            yield web
        finally:
            web.go_on.set()


class SocketServer(ThreadingTCPServer):
    """A server with a thread for each connection, in which an error is one of the test."""

    def handle_error(self, request, client_address):
        raise  # noqa: PLE0704  it is called where the error was caught


@contextmanager
def answering(server: BaseServer) -> Iterator[None]:
    """The server answers in a thread, which looks often whether it is over: each test waits for that."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
