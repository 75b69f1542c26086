"""S3 servers that lie about an object of a data set: the download ends with two readable lines."""

import pytest

from clustertrain.errors import DataError
from clustertrain.staging.fetch import fetch, open_source
from clustertrain.storage.location import Location
from liars import server

pytestmark = pytest.mark.usefixtures("no_pauses", "aws_environment")

PART = b'HTTP/1.1 206 P\r\nConnection: close\r\nETag: "x"\r\nContent-Length: 5\r\n'
EMPTY = b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def get(answers, folder):
    with server(*answers) as (url, requests):
        location = Location("s3://bkt/k", endpoint=url.removesuffix("/f"), region="us-east-1", retry_s=0)
        source = open_source(location)
        part = fetch(source, folder, uri=location.uri, sha256=None, tick=lambda *_: None)
        return part.path.read_bytes(), requests


@pytest.mark.parametrize(
    ("answers", "what"),
    [
        ([PART + b"Content-Range: bytes 3-7/10\r\n\r\nhello"], "sent bytes 3-7/10, but bytes 0-"),
        ([PART + b"Content-Range: bytes 0-4/9\r\n\r\nhello"], "sent bytes 0-4/9, but bytes 0-"),
        ([PART + b"Content-Range: \x1b[31m\r\n\r\nhello"], r"sent \x1b[31m, but bytes 0-"),
        ([EMPTY % b"416 \x1b"], "HTTP 416"),
        ([EMPTY % b"503 \x1b"], "HTTP 503"),
    ],
)
def test_nonsense_about_an_object(folder, answers, what):
    with pytest.raises(DataError) as refusal:
        get(answers, folder)
    lines = str(refusal.value).splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() and len(line) < 500 for line in lines)
    assert what in lines[0]


def test_an_etag_that_cannot_be_sent_back_is_not_used(folder):
    head = b'HTTP/1.1 206 P\r\nConnection: close\r\nETag: "\x1b[31m"\r\nContent-Length: 5\r\n'
    found, requests = get([head + b"Content-Range: bytes 0-4/5\r\n\r\nhello"], folder)
    assert found == b"hello"
    assert "if-match" not in requests[0].lower()
