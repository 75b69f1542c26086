"""S3 servers that lie about an object of a data set: the download ends with two readable lines."""

import pytest

from clustertrain.errors import DataError
from clustertrain.staging.fetch import fetch
from clustertrain.staging.part import Part
from clustertrain.storage.location import Location
from support.raw_servers import server

pytestmark = pytest.mark.usefixtures("no_pauses", "aws_environment")

PART = (
    b'HTTP/1.1 206 P\r\nConnection: close\r\nETag: "x"\r\nContent-Length: 5\r\nContent-Range: %s\r\n\r\nhello'
)
LENGTH = b'HTTP/1.1 200 OK\r\nConnection: close\r\nETag: "x"\r\n%s\r\nhello'
EMPTY = b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def get(answers, folder):
    with server(*answers) as (url, requests):
        location = Location("s3://bkt/k", endpoint=url.removesuffix("/f"), region="us-east-1", retry_s=0)
        part = Part(folder, location.uri)
        fetch(location, part, sha256=None, tick=lambda *_: None)
        return part.path.read_bytes(), requests


@pytest.mark.parametrize(
    ("answers", "what"),
    [
        ([PART % b"bytes 3-7/10"], "sent bytes 3-7/10 of version"),
        ([PART % b"\x1b[31m"], r"sent \x1b[31m of version"),
        ([LENGTH % b"Content-Length: abc\r\n"], "invalid literal for int() with base 10: 'abc'"),
        ([LENGTH % b"Content-Length: -5\r\n"], "5 read, but total bytes expected is -5"),
        ([LENGTH % b""], "KeyError: 'ContentLength'"),
        ([LENGTH % b"Content-Length: 50\r\n"], "5 read, but total bytes expected is 50"),
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
