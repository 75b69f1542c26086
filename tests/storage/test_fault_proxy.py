"""The proxy causes the faults of its script, and no others."""

import http.client
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support.fault_proxy import (
    FaultProxy,
    cut_answer,
    cut_request,
    flip_answer,
    flip_request,
    late_listing,
    lost_answer,
    reset,
    without_conditions,
)
from support.web_server import answering

BODY = bytes(range(256)) * 40


class Echo(BaseHTTPRequestHandler):
    """GET gives BODY, a listing gives how many requests came, PUT remembers what it was sent."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.came += 1
        self._give(str(self.server.came).encode() if "list-type" in self.path else BODY)

    def do_PUT(self):
        try:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        except ConnectionError:
            return
        self.server.put.append((len(body), body, dict(self.headers)))
        self._give(b"put")

    def _give(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.came, server.put = 0, []
    with answering(server):
        yield server


@pytest.fixture
def proxy(server):
    with FaultProxy(f"http://127.0.0.1:{server.server_port}") as proxy:
        yield proxy


def ask(proxy, method="GET", target="/a", body=None, timeout=20, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=timeout)
    try:
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_answers_are_cut_flipped_and_lost(proxy, server):
    proxy.script([cut_answer(1000), flip_answer(7), lost_answer(), reset()])
    with pytest.raises(http.client.IncompleteRead) as cut:
        ask(proxy)
    assert cut.value.partial == BODY[:1000]
    came = ask(proxy)[1]
    assert [n for n in range(len(BODY)) if came[n] != BODY[n]] == [7]
    for _ in range(2):
        with pytest.raises(ConnectionError):
            ask(proxy)
    assert server.came == 3  # the reset alone was not forwarded


def test_requests_are_cut_and_flipped(proxy, server):
    proxy.script([cut_request(3), flip_request(1), without_conditions()])
    with pytest.raises(ConnectionError):
        ask(proxy, "PUT", body=b"12345")
    ask(proxy, "PUT", body=b"\0\0\0")
    ask(proxy, "PUT", body=b"1", **{"If-None-Match": "*"})
    whole = [
        (body, headers) for _, body, headers in server.put if len(body) == int(headers["Content-Length"])
    ]
    assert [body for body, _ in whole] == [b"\0\xff\0", b"1"]
    assert "If-None-Match" not in whole[1][1]


def test_a_late_listing_stays_what_it_was(proxy):
    proxy.script(late_listing())
    assert ask(proxy, target="/b?list-type=2&prefix=a")[1] == b"1"
    assert ask(proxy) == (200, BODY)
    assert ask(proxy, target="/b?list-type=2&prefix=a")[1] == b"1"
    assert ask(proxy, target="/b?list-type=2&prefix=other")[1] == b"3"
    proxy.calm()
    assert ask(proxy, target="/b?list-type=2&prefix=a")[1] == b"4"
