"""Web servers that lie: whatever they send, the download ends with the file, or with two readable lines."""

import gzip
import itertools
import re

import pytest

from clustertrain.errors import DataError
from clustertrain.staging.fetch import fetch
from clustertrain.staging.part import Download
from clustertrain.storage.location import Location
from support.raw_servers import server

pytestmark = pytest.mark.usefixtures("no_pauses")

BODY = bytes(range(256)) * 100
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
RANGES = b"Accept-Ranges: bytes\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + LENGTH + b"\r\n" + BODY


def get(url, folder, **options):
    part = Download(folder, url)
    fetch(Location(url, **options), part, sha256=None, tick=lambda *_: None)
    return part.path.read_bytes()


def refusal_of(url, folder, **options):
    with pytest.raises(DataError) as refusal:
        get(url, folder, **options)
    lines = str(refusal.value).splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() and len(line) < 500 for line in lines)
    return str(refusal.value)


@pytest.mark.parametrize("length", ["abc", "1e3", "0x10", "9" * 5000, "١٢", "-5", "", "\x1b[31m"])
def test_a_length_that_is_no_number_is_refused_at_once(folder, length):
    with server(OK + b"Content-Length: " + length.encode() + b"\r\n\r\n" + BODY) as (url, requests):
        assert "sends no length" in refusal_of(url, folder)
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("location", "what"),
    [
        (b"http://[::1", "is not a URL"),
        (b"//[x]/", "is not a URL"),
        (b"file:///etc/passwd", "HTTP 302 .* is not allowed"),
        (b"javascript:alert(1)", "HTTP 302 .* is not allowed"),
        (b"javascript:\x1b[31m", "HTTP 302 .* is not allowed"),
        (b"/f", "HTTP 302 .*infinite loop"),
        (b"http://" + b"x" * 70 + b".example/", "is not a URL"),
    ],
)
def test_a_redirect_to_nowhere_is_refused(folder, location, what):
    with server(b"HTTP/1.1 302 Found\r\nLocation: " + location + b"\r\n\r\n") as (url, requests):
        assert re.search(what, refusal_of(url, folder))
    assert len(requests) == (5 if location == b"/f" else 1)


@pytest.mark.parametrize("status", [204, 206, 304, 305, 416, 418, 999])
def test_an_answer_that_nobody_asked_for(folder, status):
    answer = b'HTTP/1.1 %d \x1b[31mred\x1b[0m\r\nETag: "x"\r\nContent-Length: 0\r\n\r\n' % status
    with server(answer) as (url, requests):
        assert f"HTTP {status}" in refusal_of(url, folder)
    assert len(requests) == 1


@pytest.mark.parametrize(
    "part",
    [
        b"HTTP/1.1 206 P\r\nContent-Range: bytes 9-5/3\r\n",
        b"HTTP/1.1 206 P\r\nContent-Range: bytes \xd9\xa1-5/10\r\n",
        b"HTTP/1.1 206 P\r\n",
        b"HTTP/1.1 416 No\r\nContent-Range: bytes */%b\r\n" % (b"9" * 5000),
        b"HTTP/1.1 416 No\r\n",
        b"HTTP/1.1 416 No\r\nContent-Range: bytes 100-%d/%d\r\n" % (len(BODY) - 1, len(BODY)),
        b"HTTP/1.1 206 P\r\nContent-Range: bytes 107-%d/%d\r\n" % (len(BODY) - 1, len(BODY)),
    ],
)
def test_a_range_that_is_none_leads_to_the_whole_file(folder, part):
    cut = OK + LENGTH + RANGES + b'ETag: "x"\r\n\r\n' + BODY[:100]
    with server(cut, part + b"Content-Length: 5\r\n\r\n12345", WHOLE) as (url, requests):
        assert get(url, folder) == BODY
    assert "Range: bytes=100-" in requests[1]
    assert "Range" not in requests[2]


@pytest.mark.parametrize("etag", [b'"a\tb"', b'"' + b"x" * 5000 + b'"', b'"\x1b"'])
def test_an_etag_that_is_none_does_no_harm(folder, etag):
    cut = OK + LENGTH + RANGES + b"ETag: " + etag + b"\r\n\r\n" + BODY[:100]
    with server(cut, WHOLE) as (url, _):
        assert get(url, folder) == BODY


def endless(*pieces):
    return lambda: itertools.chain(pieces[:-1], itertools.repeat(pieces[-1]))


@pytest.mark.parametrize(
    "answer",
    [
        endless(b"HTTP/1.1 100 Continue\r\n\r\n"),
        endless(b"x"),
        endless(OK, b"X"),
        endless(OK + LENGTH + b"\r\n", b"x"),
        endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        endless(OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x"),
        endless(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
        endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"400\r\n" + b"x" * 1024 + b"\r\n"),
    ],
)
def test_a_server_that_never_comes_to_an_end_is_given_up(folder, answer):
    with server(answer) as (url, requests):
        text = refusal_of(url, folder, timeout_s=0.4)
    assert "was not complete after 0.4s, the limit `timeout` of this data set (data.*.timeout)." in text
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"", "Remote end closed"),
        (b"\x1b[31m\r\n\r\n", "BadStatusLine"),
        (OK + b"X: y\r\n" * 200, "more than 100 headers"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "Incomplete|InvalidChunk|Connection broken"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nxxxxx\r\n", ""),
    ],
)
def test_an_answer_that_breaks_off_is_tried_again(folder, half_a_second_of_retries, answer, what):
    with server(answer) as (url, requests):
        assert re.search(what, refusal_of(url, folder))
    assert len(requests) > 2


def test_the_time_limit_names_the_reason_of_the_last_try(folder):
    text = refusal_of("http://127.0.0.1:1/f", folder, timeout_s=0.3)
    assert "The last try: ConnectionRefusedError: [Errno 111] Connection refused." in text


GZIP = OK + b'Content-Encoding: gzip\r\nETag: "x"\r\nContent-Length: %d\r\n\r\n%s'


def test_a_file_that_is_compressed_itself_stays_so(folder):
    """Many servers send .gz files with this header."""
    packed = gzip.compress(BODY)
    with server(GZIP % (len(packed), packed)) as (url, _):
        assert get(f"{url}.tar.gz", folder) == packed


def test_a_compressed_file_whose_server_names_its_encoding_is_resumed(folder):
    """As Apache does with AddEncoding."""
    head = RANGES + b'Content-Encoding: x-gzip\r\nETag: "x"\r\nContent-Length: %d\r\n'
    cut = OK + head % len(BODY) + b"\r\n" + BODY[:100]
    part = b"HTTP/1.1 206 P\r\nContent-Range: bytes 100-%d/%d\r\n" % (len(BODY) - 1, len(BODY))
    rest = part + head % (len(BODY) - 100) + b"\r\n" + BODY[100:]
    with server(cut, rest) as (url, requests):
        assert get(f"{url}.tar.gz", folder) == BODY
    assert len(requests) == 2


@pytest.mark.parametrize("encoding", [b"gzip", b"\x1bfoo"])
def test_an_encoding_that_was_not_requested_is_refused(folder, encoding):
    with server(OK + LENGTH + b"Content-Encoding: " + encoding + b"\r\n\r\n" + BODY) as (url, requests):
        assert "although none was requested" in refusal_of(url, folder)
    assert len(requests) == 1


def test_a_proxy_is_used_and_its_lies_are_readable(folder, monkeypatch, half_a_second_of_retries):
    with server(WHOLE) as (url, requests):
        monkeypatch.setenv("http_proxy", url.replace("http://", "http://me:s%40cret@").removesuffix("/f"))
        monkeypatch.delenv("no_proxy", raising=False)
        assert get("http://data.example/f", folder) == BODY
    assert requests[0].startswith("GET http://data.example/f HTTP/1.1")
    assert "proxy-authorization: Basic bWU6c0BjcmV0".lower() in requests[0].lower()
    (folder / "download").unlink(missing_ok=True)
    with server(b"HTTP/1.1 407 \x1b[31m\r\n\r\n") as (url, _):
        monkeypatch.setenv("https_proxy", url.removesuffix("/f"))
        assert "407" in refusal_of("https://data.example/f", folder)


def test_a_proxy_of_another_kind_is_refused_without_its_password(folder, monkeypatch):
    monkeypatch.setenv("http_proxy", "socks5://me:pass@h:1080")
    monkeypatch.delenv("no_proxy", raising=False)
    text = refusal_of("http://data.example/f", folder)
    assert "unknown url type: socks5" in text
    assert "me:pass" not in text
