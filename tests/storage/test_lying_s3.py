"""S3 servers that lie: whatever they answer, the user sees two printable lines with the key and the cause."""

import pytest

from clustertrain.errors import StorageError
from clustertrain.storage.location import Location
from clustertrain.storage.s3_bucket import Bucket
from liars import answering

pytestmark = [
    pytest.mark.usefixtures("aws_environment"),
    # boto3 closes no connection whose answer it cannot read
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

HEAD = b"HTTP/1.1 %s\r\nConnection: close\r\n"
OK, PART = HEAD % b"200 OK", HEAD % b"206 Part"
ETAG = b'ETag: "x"\r\n'
C1 = b"\xc2\x9b31m"  # a control sequence in one character, which XML may contain


class Liar:
    """One server for all tests, because a client of boto3 takes a second to create."""

    def __init__(self):
        self.answers, self.requests = [], []

    def next_answer(self):
        while True:
            yield self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def bucket(self, *answers):
        self.answers[:] = answers
        self.requests.clear()
        return Bucket(self.location)


@pytest.fixture(scope="module")
def liar():
    liar = Liar()
    with answering(liar.next_answer()) as (url, liar.requests):
        endpoint = url.removesuffix("/f")
        liar.location = Location("s3://bkt/p", endpoint=endpoint, region="us-east-1", retry_s=0)
        yield liar


def xml(body, status=b"200 OK"):
    return HEAD % status + b"Content-Type: application/xml\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


def listing(inner, *, is_truncated=b"false"):
    body = b"<ListBucketResult><IsTruncated>%s</IsTruncated>%s</ListBucketResult>" % (is_truncated, inner)
    return xml(body)


def read(bucket):
    return b"".join(bucket.blocks("p/k", 1 << 20))


def upload_part(bucket):
    return bucket.upload_part("p/k", "id", 1, bytearray(b"x"), lambda seconds: None)


def refusal_of(liar, answers, use):
    with pytest.raises(StorageError) as refusal:
        use(liar.bucket(*answers))
    lines = str(refusal.value).splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() and len(line) < 500 for line in lines)
    assert "s3://bkt/p" in lines[0]
    return str(refusal.value)


@pytest.mark.parametrize(
    "length", ["abc", "-5", "9" * 20, "9" * 5000, "١٢", "1_0", "+5", "5, 6", "\x1b[31m", ""], ids=ascii
)
@pytest.mark.parametrize("use", [read, lambda bucket: bucket.size_or_none("p/k")], ids=["GET", "HEAD"])
def test_a_length_that_is_no_number(liar, length, use):
    refusal_of(liar, [OK + ETAG + b"Content-Length: " + length.encode() + b"\r\n\r\nhello"], use)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (OK + ETAG + b"\r\nhello", "it sent no Content-Length"),
        (OK + b"Content-Length: 5\r\n\r\nhello", "it sent no ETag"),
        (OK + b'ETag: "\x1b[31m"\r\nContent-Length: 5\r\n\r\nhello', r'"\x1b[31m"'),
        (OK + ETAG + b"Last-Modified: \x1b[31m\r\nContent-Length: 5\r\n\r\nhello", "Invalid timestamp"),
        (HEAD % b"204 \x1b[31m" + b"\r\n", "it sent no ETag"),
        (HEAD % b"304 \x1b[31m" + b"\r\n", "HTTP 304"),
        (
            xml(b"<Error><Code>C%s</Code><Message>%s\n\nred</Message></Error>" % (C1, C1), b"400 B"),
            r"C\x9b31m",
        ),
        (xml(b"<Error><Code>%s</Code></Error>" % (b"x" * 9000), b"400 Bad"), "HTTP 400 xxx"),
        (xml(b"<Error><Code>%s</Code></Error>" % C1, b"503 Bad"), r"HTTP 503 \x9b31m"),
        (xml(b"<a>" * 20_000 + b"</a>" * 20_000, b"400 Bad"), "recursion"),
        (HEAD % b"301 M" + b"x-amz-bucket-region: \x1b[31m\r\n\r\n", r"\x1b[31m"),
        (b"\x1b[31m\r\n\r\n", "Connection was closed"),
    ],
)
def test_an_answer_that_is_none(liar, answer, what):
    assert what in refusal_of(liar, [answer], read)
    assert len(liar.requests) == 1


@pytest.mark.parametrize(
    ("part", "what"),
    [
        (PART + b"Content-Range: bytes 0-2/5\r\nContent-Length: 3\r\n\r\nhel", "bytes 0-2 of 5, but 3- were"),
        (PART + b"Content-Range: bytes 3-3/5\r\nContent-Length: 1\r\n\r\nl", "bytes 3-3 of 5, but 3- were"),
        (PART + b"Content-Range: bytes 3-9/10\r\nContent-Length: 7\r\n\r\nloworld", "the size of the object"),
        (PART + b"Content-Range: bytes 3-4/5\r\nContent-Length: 9\r\n\r\nlo", "but its Content-Length is 9"),
        (PART + b"Content-Range: bytes \xd9\xa3-4/5\r\nContent-Length: 2\r\n\r\nlo", "not a range of bytes"),
        (PART + b"Content-Range: bytes 3-4/" + b"9" * 20 + b"\r\n\r\nlo", "not a range of bytes"),
        (PART + b"Content-Range: \x1b[31m\r\nContent-Length: 2\r\n\r\nlo", r"Content-Range '\x1b[31m'"),
        (OK + ETAG + b"Content-Length: 5\r\n\r\nhello", "it sent no Content-Range"),
    ],
)
def test_a_range_of_other_bytes_than_requested(liar, part, what):
    """After a cut: the rest is requested as a range of the same version."""

    def in_pieces(lying):
        blocks = lying.blocks("p/k", 3)
        assert next(blocks) == b"hel"
        blocks.gi_frame.f_locals["reading"].close()  # what a cut connection does between two blocks
        return b"".join(blocks)

    whole = OK + ETAG + b"Content-Length: 5\r\n\r\nhello"
    assert what in refusal_of(liar, [whole, part], in_pieces)
    assert "Range: bytes=3-" in liar.requests[1]
    part = PART + b"Content-Range: bytes 3-4/5\r\nContent-Length: 2\r\n\r\nlo"
    assert in_pieces(liar.bucket(whole, part)) == b"lo"


def entry(inner):
    return listing(b"<Contents>" + inner + b"</Contents>")


@pytest.mark.parametrize(
    ("answers", "what"),
    [
        ([entry(b"<Key>p/a</Key><LastModified>" + C1 + b"</LastModified>")], "Invalid timestamp"),
        ([entry(b"<Key>p/a</Key><LastModified>99999-01-01T00:00:00Z</LastModified>")], "out of range"),
        ([entry(b"<Key>p/a</Key><Size>\xd9\xa1z</Size>")], "int()"),
        ([entry(b"<Key>p/a</Key>")], "it sent no LastModified"),
        ([entry(b"<Size>5</Size>")], "it sent no Key"),
        ([entry(b"<Key>q/" + C1 + b"</Key>")], r"Key 'q/\x9b31m', not a key below 'p/'"),
        ([xml(b"<html><body>Log in</body></html>")], "it sent no listing"),
        ([xml(b"")], "it sent no listing"),
        ([xml(b"\x1b[31m")], "HTTP 500"),
        (
            [listing(b"<NextContinuationToken>a</NextContinuationToken>", is_truncated=b"true")],
            "repeats one page without end",
        ),
    ],
)
def test_a_listing_that_is_none(liar, answers, what):
    assert what in refusal_of(liar, answers, lambda lying: list(lying.below("p/")))


def test_a_key_that_could_change_a_terminal_is_left_out(liar):
    time = b"<LastModified>2026-01-01T00:00:00Z</LastModified>"
    inner = b"".join(b"<Contents><Key>p/%s</Key>%s</Contents>" % (name, time) for name in (b"a", C1, b"b\n"))
    inner += b"<CommonPrefixes><Prefix>p/%s/</Prefix></CommonPrefixes>" % C1
    assert liar.bucket(listing(inner)).directly_below("p/") == (["a"], [])


@pytest.mark.parametrize(
    ("answer", "use"),
    [
        (xml(b"<InitiateMultipartUploadResult/>"), lambda bucket: bucket.begin_upload("p/k")),
        (xml(b"<I><UploadId>" + C1 + b"</UploadId></I>"), lambda bucket: bucket.begin_upload("p/k")),
        (OK + b"Content-Length: 0\r\n\r\n", upload_part),
        (OK + b'ETag: "\x1b"\r\nContent-Length: 0\r\n\r\n', upload_part),
    ],
)
def test_an_upload_that_cannot_go_on(liar, answer, use):
    assert "it sent " in refusal_of(liar, [answer], use)


def test_uploads_that_cannot_be_aborted_are_left_out(liar):
    uploads = [
        b"<Key>p/a</Key><UploadId>1</UploadId>",
        b"<Key>p/b</Key>",
        b"<UploadId>2</UploadId>",
        b"<Key>p/c</Key><UploadId>" + C1 + b"</UploadId>",
        b"<Key>q/d</Key><UploadId>3</UploadId>",
    ]
    answer = xml(b"<L>" + b"".join(b"<Upload>" + upload + b"</Upload>" for upload in uploads) + b"</L>")
    assert liar.bucket(answer).uploads_below("p/") == [("p/a", "1")]


@pytest.mark.parametrize("key", [b"", b"<Key>other</Key>"])
def test_objects_whose_deletion_is_unclear_are_deleted_one_by_one(liar, key):
    answer = xml(b"<DeleteResult><Error>" + key + b"<Code>a</Code></Error></DeleteResult>")
    liar.bucket(answer, HEAD % b"204 OK" + b"\r\n").delete("p/a", "p/b")
    assert [request.split()[0:2] for request in liar.requests[1:]] == [
        ["DELETE", "/bkt/p/a"],
        ["DELETE", "/bkt/p/b"],
    ]
