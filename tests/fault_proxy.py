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
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Request:
    """The request of a client; `nth` counts all requests of the proxy from 0."""

    nth: int
    method: str
    target: str
    headers: dict[str, str]  # names in lower case
    body_bytes: int

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
    bytes_per_s: float = math.inf
    old_listing_s: float = 0.0
    dropped_header: str = ""
    when_asked: Callable[[], object] = lambda: None
    when_answered: Callable[[], object] = lambda: None


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


def slow(bytes_per_s: float) -> Fault:
    """A slow link, both ways."""
    return Fault(bytes_per_s=bytes_per_s)


def late_listing(seconds: float = math.inf) -> Fault:
    """For this time, a listing is the one of the first request."""
    return Fault(old_listing_s=seconds)


def asked(call: Callable[[], object]) -> Fault:
    """The call is over before the server gets the request."""
    return Fault(when_asked=call)


def answered(call: Callable[[], object]) -> Fault:
    """The server has begun its answer before the call, and the client gets it after the call."""
    return Fault(when_answered=call)


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

    def next(self, request: Request) -> tuple[bool, Fault | None]:
        """Whether the request fits, and what it meets."""
        if self._left <= 0 or time.monotonic() >= self._ends or not self._when(request):
            return False, None
        self._left -= 1
        return True, self._faults.pop(0) if self._is_list else self._faults[0]


class FaultProxy:
    """Stands before the server at `upstream`, an http:// address; a thread for each connection. `address`:
    where it listens, for nodes that have a loopback of their own."""

    def __init__(self, upstream: str, address: str = "127.0.0.1") -> None:
        parts = urlsplit(upstream)
        self._address = address
        self._upstream = (parts.hostname, parts.port)
        self._scripts: list[_Script] = []
        self._listings: dict[str, tuple[float, bytes]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
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
            self._listings.clear()

    def count(self, when: When = every) -> int:
        """How many requests came that fit."""
        with self._lock:
            return sum(when(request) for request in self.requests)

    def up(self) -> None:
        """Take connections, at the same port as before."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self._address, self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def down(self) -> None:
        """Refuse connections, and end those that are open."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._listener.close()
            self._listener = None
        with self._lock:
            for connection in list(self._open):
                _shut(connection)

    def __enter__(self) -> "FaultProxy":
        self.up()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self.down()

    # ------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One request of one connection: every answer ends with it, so that none can be mixed up."""
        try:
            with client:
                try:
                    self._answer(client)
                except OSError:
                    _reset(client)
        finally:
            with self._lock:
                self._open.discard(client)

    def _answer(self, client: socket.socket) -> None:
        head, body = _read_message(client, ends_by_close=False)
        if not head:
            return
        request, fault = self._met(head, body)
        fault.when_asked()
        if fault.is_reset:
            _reset(client)
        elif fault.status is not None:
            client.sendall(_refusal(fault, request))
        elif fault.stalls_at < 0:
            self._ended.wait()
        elif fault.old_listing_s and listing(request):
            client.sendall(self._listed(request, head, fault.old_listing_s))
        else:
            with socket.create_connection(self._upstream, timeout=60) as server:
                if self._forward(server, head, body, fault):
                    self._relay(server, client, request, fault)
                else:
                    _reset(client)

    def _met(self, head: bytes, body: bytes) -> tuple[Request, Fault]:
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        with self._lock:
            request = Request(len(self.requests), method, target, headers, len(body))
            self.requests.append(request)
            for script in self._scripts:
                fits, fault = script.next(request)
                if fits:
                    return request, fault or Fault()
        return request, Fault()

    def _forward(self, server: socket.socket, head: bytes, body: bytes, fault: Fault) -> bool:
        """Send the request on; False when the fault was to cut it."""
        server.sendall(_without(head, "connection", "expect", fault.dropped_header))
        sent = bytearray(body)
        if fault.flips_request_at is not None:
            sent[fault.flips_request_at] ^= 0xFF
        if fault.cuts_request_at < len(sent):
            server.sendall(sent[: int(fault.cuts_request_at)])
            _reset(server)
            return False
        self._send(server, sent, fault.bytes_per_s)
        return True

    def _relay(self, server: socket.socket, client: socket.socket, request: Request, fault: Fault) -> None:
        """Pass the answer on as it comes."""
        head, first = _read_head(server)
        fault.when_answered()
        if fault.loses_answer:
            while server.recv(_CHUNK_BYTES):
                pass
        if fault.loses_answer or not head:
            _reset(client)
            return
        client.sendall(_without(head, "connection"))
        passed, allowed = 0, min(fault.cuts_answer_at, fault.stalls_at)
        length = _content_length(head)
        ends = 0 if request.method == "HEAD" else math.inf if length is None else length
        chunk = first
        while passed < ends:
            if not chunk and not (chunk := server.recv(_CHUNK_BYTES)):
                return
            if fault.flips_answer_at is not None and 0 <= fault.flips_answer_at - passed < len(chunk):
                changed = bytearray(chunk)
                changed[fault.flips_answer_at - passed] ^= 0xFF
                chunk = bytes(changed)
            self._send(client, chunk[: int(min(len(chunk), allowed - passed))], fault.bytes_per_s)
            passed += len(chunk)
            chunk = b""
            if passed > fault.stalls_at:
                self._ended.wait()
            if passed > allowed:
                return

    def _send(self, to: socket.socket, data: bytes | bytearray, bytes_per_s: float) -> None:
        if math.isinf(bytes_per_s):
            to.sendall(data)
            return
        step = max(1, int(bytes_per_s / 20))
        for start in range(0, len(data), step):
            to.sendall(data[start : start + step])
            if self._ended.wait(len(data[start : start + step]) / bytes_per_s):
                return

    def _listed(self, request: Request, head: bytes, for_s: float) -> bytes:
        now = time.monotonic()
        with self._lock:
            listed_at, answer = self._listings.get(request.target, (-math.inf, b""))
        if now - listed_at <= for_s and answer:
            return answer
        with socket.create_connection(self._upstream, timeout=60) as server:
            server.sendall(_without(head, "connection"))
            answer = b"".join(_read_message(server, ends_by_close=True))
        with self._lock:
            self._listings[request.target] = (now, answer)
        return answer


def _read_head(sock: socket.socket) -> tuple[bytes, bytes]:
    """The head of a message with its empty line, and what came behind it; nothing when the peer left."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(_CHUNK_BYTES)
        if not more:
            return b"", b""
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", rest


def _read_message(sock: socket.socket, *, ends_by_close: bool) -> tuple[bytes, bytes]:
    """Head and body of a request, or of an answer that ends when its sender closes."""
    head, rest = _read_head(sock)
    if b"\r\nexpect: 100-continue" in head.lower():
        sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    length = _content_length(head)
    size = length if length is not None else math.inf if ends_by_close else 0
    body = bytearray(rest)
    while len(body) < size:
        more = sock.recv(_CHUNK_BYTES)
        if not more and not ends_by_close:
            return b"", b""
        if not more:
            break
        body += more
    return head, bytes(body)


def _content_length(head: bytes) -> int | None:
    match = re.search(rb"\r\ncontent-length: *(\d+)\r\n", head, re.IGNORECASE)
    return int(match[1]) if match else None


def _without(head: bytes, *names: str) -> bytes:
    """The head without these headers, and with `Connection: close`."""
    lines = head[:-4].split(b"\r\n")
    kept = [line for line in lines if line.partition(b":")[0].decode("latin-1").lower() not in names]
    return b"\r\n".join([*kept, b"Connection: close"]) + b"\r\n\r\n"


def _refusal(fault: Fault, request: Request) -> bytes:
    text = f"<Error><Code>{fault.code}</Code><Message>scripted</Message></Error>"
    body = b"" if request.method == "HEAD" else f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
    head = f"HTTP/1.1 {fault.status} Scripted\r\nContent-Type: application/xml\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def _reset(sock: socket.socket) -> None:
    """Close with a reset (RST) rather than in order."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    except OSError:
        return


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
