"""An object that is read in several requests: after a cut, only the rest of the same version counts."""

import pytest

from clustertrain.errors import StorageError
from clustertrain.storage import s3_client
from clustertrain.storage.location import Location
from clustertrain.storage.s3_objects import S3Objects
from support.raw_servers import server

pytestmark = pytest.mark.usefixtures("aws_environment")

HEAD = b'HTTP/1.1 %s\r\nConnection: close\r\nETag: "x"\r\n'
OK, PART = HEAD % b"200 OK", HEAD % b"206 Part"
WHOLE = OK + b"Content-Length: 5\r\n\r\nhello"
CUT = WHOLE[:-1]


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(s3_client, "FIRST_PAUSE_S", 0.01)


def read_in_two(part):
    """What is read, and the requests: the connection is lost after the first block."""
    with server(CUT, part) as (url, requests):
        location = Location("s3://bkt/p", endpoint=url.removesuffix("/f"), region="us-east-1", retry_s=0.3)
        return b"".join(S3Objects(location).blocks("k", block_bytes=3)), requests


@pytest.mark.parametrize(
    ("part", "received_bytes"),
    [
        (PART + b"Content-Range: bytes 3-9/10\r\nContent-Length: 7\r\n\r\nloworld", 7),
        (WHOLE, 5),  # the server ignores the range
    ],
)
def test_a_rest_of_another_length_is_refused(part, received_bytes):
    with pytest.raises(StorageError, match=f"received {received_bytes} bytes, expected 2"):
        read_in_two(part)
