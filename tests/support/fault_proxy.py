"""A proxy on loopback that makes scripted faults between an HTTP client and its server.

    with FaultProxy(server_url) as proxy:
        client(proxy.endpoint)                                    # in place of server_url
        proxy.script(status(503), times=5)                        # the next five requests
        proxy.script(status(429, "SlowDown"), for_s=2.0)          # those of two seconds
        proxy.script([status(500), None, reset()])                # one by one; None passes
        proxy.script(cut_answer(1000), when=get, times=1)         # the first GET
        proxy.script(reset(), when=lambda r: r.method == "PUT" and "part" in r.query)
        proxy.script([None, asked(call)])                         # call() before the server gets the second
        proxy.down(); …; proxy.up()                               # refuses connections meanwhile
        proxy.count(put)                                          # how many came

The first script that a request fits, and that is not over, is the one it meets. Bytes are counted in bodies,
not in headers; a request's body comes with a Content-Length. The Host header passes as the client wrote it,
since S3's signatures cover it. They cover the conditions of a PUT, too: `without_conditions` needs a server
that checks no signatures, such as moto's.
"""

import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote, urlsplit

from support.web_server import SocketServer

_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Request:
    """The request of a client; `nth` counts all requests of the proxy from 0."""

    nth: int
    method: str
    target: str
    headers: dict[str, str]  # names in lower case

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> str:
        return urlsplit(self.target).query


When = Callable[[Request], bool]


def every(request: Request) -> bool:
    return True


def get(request: Request) -> bool:
    """A GET of an object."""
    return request.method == "GET" and not listing(request)


def put(request: Request) -> bool:
    return request.method == "PUT"


def listing(request: Request) -> bool:
    return request.method == "GET" and "list-type=2" in request.query


@dataclass(frozen=True)
class Fault:
    """What happens to a request; the functions below make them."""

    status: int | None = None
    code: str = "InternalError"
    is_reset: bool = False
    stalls_at: float = math.inf
    cuts_request_at: float = math.inf
    cuts_answer_at: float = math.inf
    flips_request_at: int | None = None
    flips_answer_at: int | None = None
    loses_answer: bool = False
    old_listing_s: float = 0.0
    dropped_header: str = ""
    when_asked: Callable[[], object] = lambda: None


def status(number: int, code: str = "") -> Fault:
    """Answer with this status and S3's name of an error, in place of the server."""
    known = {403: "AccessDenied", 429: "SlowDown", 500: "InternalError", 503: "SlowDown"}
    return Fault(status=number, code=code or known.get(number, "InternalError"))


def reset() -> Fault:
    """Read the request, then reset the connection; the server receives nothing."""
    return Fault(is_reset=True)


def stall(after_bytes: int = -1) -> Fault:
    """Say nothing, or stop after so many bytes of the answer's body; the connection stays open."""
    return Fault(stalls_at=after_bytes)


def cut_request(at: int) -> Fault:
    """The server gets so many bytes of the body, and then both connections are reset."""
    return Fault(cuts_request_at=at)


def cut_answer(at: int) -> Fault:
    """The client gets so many bytes of the body, and then its connection is closed."""
    return Fault(cuts_answer_at=at)


def lost_answer() -> Fault:
    """The server executes the request, the client gets a reset."""
    return Fault(loses_answer=True)


def flip_request(at: int) -> Fault:
    """One byte of the request's body is another one when it arrives."""
    return Fault(flips_request_at=at)


def flip_answer(at: int) -> Fault:
    """One byte of the answer's body is another one when it arrives."""
    return Fault(flips_answer_at=at)


def late_listing(seconds: float = math.inf) -> Fault:
    """For this time, a listing is the one of the first request."""
    return Fault(old_listing_s=seconds)


def asked(call: Callable[[], object]) -> Fault:
    """The call is over before the server gets the request."""
    return Fault(when_asked=call)


def without_conditions() -> Fault:
    """The server does not see If-None-Match."""
    return Fault(dropped_header="if-none-match")


class _Script:
    """Faults for the requests that fit, until it is over."""

    def __init__(
        self, faults: Sequence[Fault | None] | Fault, when: When, times: float, for_s: float
    ) -> None:
        self._faults = [faults] if isinstance(faults, Fault) else list(faults)
        self._is_list = not isinstance(faults, Fault)
        self._when, self._left = when, len(self._faults) if self._is_list else times
        self._ends = time.monotonic() + for_s

    def next(self, request: Request) -> Fault | None:
        """What the request meets; None if it does not fit."""
        if self._left <= 0 or time.monotonic() >= self._ends or not self._when(request):
            return None
        self._left -= 1
        return (self._faults.pop(0) if self._is_list else self._faults[0]) or Fault()


class FaultProxy:
    """Stands before the server at `upstream`, an http:// address; a thread for each connection. `address`:
    where it listens, for nodes that have a loopback of their own."""

    def __init__(self, upstream: str, address: str = "127.0.0.1") -> None:
        parts = urlsplit(upstream)
        self._address = address
        self.upstream = (parts.hostname, parts.port)
        self._scripts: list[_Script] = []
        self.listings: dict[str, tuple[float, HTTPResponse, bytes]] = {}
        self._lock = threading.Lock()
        self.ended = threading.Event()
        self._listener: _Listener | None = None
        self.requests: list[Request] = []
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://{self._address}:{self.port}"

    def script(
        self,
        faults: Sequence[Fault | None] | Fault,
        *,
        when: When = every,
        times: float = math.inf,
        for_s: float = math.inf,
    ) -> None:
        """From now on, requests that fit meet the fault: all, so many, those of so many seconds; or each the
        next one of a list, and none when the list is at its end."""
        with self._lock:
            self._scripts.append(_Script(faults, when, times, for_s))

    def calm(self) -> None:
        """Forget every script and every remembered listing."""
        with self._lock:
            self._scripts.clear()
            self.listings.clear()

    def count(self, when: When = every) -> int:
        """How many requests came that fit."""
        with self._lock:
            return sum(when(request) for request in self.requests)

    def met(self, method: str, target: str, headers: dict[str, str]) -> tuple[Request, Fault]:
        """A request that came, and what it meets."""
        with self._lock:
            request = Request(len(self.requests), method, target, headers)
            self.requests.append(request)
            faults = (script.next(request) for script in self._scripts)
            return request, next(filter(None, faults), Fault())

    def up(self) -> None:
        """Take connections, at the same port as before."""
        self._listener = _Listener((self._address, self.port), _Connection)
        self._listener.proxy = self
        self.port = self._listener.server_address[1]
        threading.Thread(target=self._listener.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """Refuse connections, and end those that are open."""
        if self._listener is not None:
            self._listener.shutdown()
            self._listener.server_close()
            for connection in list(self._listener.open):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._listener = None

    def __enter__(self) -> "FaultProxy":
        self.up()
        return self

    def __exit__(self, *exc: object) -> None:
        self.ended.set()
        self.down()


class _Listener(SocketServer):
    """Knows its open connections."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128
    proxy: FaultProxy

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.open: set[socket.socket] = set()

    def process_request(self, request, client_address) -> None:
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request) -> None:
        self.open.discard(request)
        super().shutdown_request(request)


class _Connection(BaseHTTPRequestHandler):
    """One request of one connection: every answer ends with it, so that none can be mixed up."""

    protocol_version = "HTTP/1.1"
    server: _Listener

    def log_message(self, *args) -> None:
        """Say nothing."""

    def handle(self) -> None:
        try:
            self.handle_one_request()
        except (OSError, HTTPException):
            _reset(self.connection)

    def _answer(self) -> None:
        proxy, size = self.server.proxy, int(self.headers["Content-Length"] or 0)
        body = self.rfile.read(size)
        if len(body) < size:  # the client has left
            return
        headers = {name.lower(): value.strip() for name, value in self.headers.items()}
        request, fault = proxy.met(self.command, self.path, headers)
        fault.when_asked()
        if fault.is_reset:
            _reset(self.connection)
        elif fault.status is not None:
            self._refuse(fault)
        elif fault.stalls_at < 0:
            proxy.ended.wait()
        elif fault.old_listing_s and listing(request):
            self._list(request, fault.old_listing_s)
        else:
            with closing(HTTPConnection(*proxy.upstream, timeout=60)) as upstream:
                self._ask(upstream, body, fault)
                self._relay(upstream.getresponse(), fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815  the names that its class calls

    def _refuse(self, fault: Fault) -> None:
        text = f"<Error><Code>{fault.code}</Code><Message>scripted</Message></Error>"
        body = b"" if self.command == "HEAD" else f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
        self.send_response_only(fault.status, "Scripted")
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _list(self, request: Request, for_s: float) -> None:
        """Answer as the first time, or with what the server says now."""
        listings, now = self.server.proxy.listings, time.monotonic()
        listed_at, answer, body = listings.get(request.target, (-math.inf, None, b""))
        if answer is None or now - listed_at > for_s:
            with closing(HTTPConnection(*self.server.proxy.upstream, timeout=60)) as upstream:
                self._ask(upstream, b"", Fault())
                answer = upstream.getresponse()
                body = answer.read()
            listings[request.target] = now, answer, body
        self._begin(answer)
        self.wfile.write(body)

    def _ask(self, upstream: HTTPConnection, body: bytes, fault: Fault) -> None:
        """Send the request on."""
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "expect", fault.dropped_header):
                upstream.putheader(name, value)
        upstream.putheader("Connection", "close")
        upstream.endheaders()
        sent = bytearray(body)
        if fault.flips_request_at is not None:
            sent[fault.flips_request_at] ^= 0xFF
        if fault.cuts_request_at < len(sent):
            upstream.send(sent[: int(fault.cuts_request_at)])
            _reset(upstream.sock)
            raise ConnectionResetError("scripted")
        upstream.sock.sendall(sent)

    def _begin(self, answer: HTTPResponse) -> None:
        """Send the head of an answer."""
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()

    def _relay(self, answer: HTTPResponse, fault: Fault) -> None:
        """Pass the answer on as it comes."""
        if fault.loses_answer:
            answer.read()
            _reset(self.connection)
            return
        self._begin(answer)
        passed, allowed = 0, min(fault.cuts_answer_at, fault.stalls_at)
        while passed <= allowed and (chunk := bytearray(answer.read1(_CHUNK_BYTES))):
            if fault.flips_answer_at is not None and 0 <= fault.flips_answer_at - passed < len(chunk):
                chunk[fault.flips_answer_at - passed] ^= 0xFF
            self.connection.sendall(chunk[: int(min(len(chunk), allowed - passed))])
            passed += len(chunk)
        if passed > fault.stalls_at:
            self.server.proxy.ended.wait()


def _reset(sock: socket.socket) -> None:
    """Close with a reset (RST) rather than in order."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
