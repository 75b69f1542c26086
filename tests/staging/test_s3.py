"""Staging from S3: from two servers, through every fault on the way."""

import hashlib
import random
import time

import pytest
from test_stage import child, unfinished

from clustertrain.errors import DataError, RunStopped
from clustertrain.node.waiting import wait_until
from clustertrain.staging import source
from clustertrain.staging.stage import stage
from clustertrain.storage.location import Location
from support.fault_proxy import FaultProxy, asked, cut_answer, flip_answer, get, reset, stall, status

PART_BYTES = 8 << 20  # of boto3
BODY = random.Random(3).randbytes(2 * PART_BYTES + 1000)  # a request for the length, and three for parts
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(source, "BACKOFF_S", 0.01)


@pytest.fixture
def proxy(moto_s3):
    moto_s3.client().put_object(Bucket=moto_s3.bucket, Key="f.bin", Body=BODY)
    with FaultProxy(moto_s3.endpoint) as proxy:
        yield proxy


def bring(location, into, sha256=SHA256, extract=False, **options):
    return stage("d", location, sha256=sha256, extract=extract, into=into, **options)


@pytest.mark.parametrize("name", ["f.bin", "größe datei%20 100%.bin"])
def test_an_object_arrives_under_its_name(s3, into, name):
    s3.client().put_object(Bucket=s3.bucket, Key=f"a/{name}", Body=BODY)
    path = bring(s3.location(f"a/{name}"), into)
    assert path.name == name
    assert path.read_bytes() == BODY
    assert unfinished(into) == []


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1])
def test_an_object_of_any_size_arrives_whole(s3, into, size):
    s3.client().put_object(Bucket=s3.bucket, Key="f", Body=BODY[:size])
    sha256 = hashlib.sha256(BODY[:size]).hexdigest()
    assert bring(s3.location("f"), into, sha256).read_bytes() == BODY[:size]


def test_a_missing_object_is_reported_at_once(s3, into):
    began = time.monotonic()
    with pytest.raises(DataError, match=rf"GET s3://{s3.bucket}/no/such .*HTTP 404 NoSuchKey"):
        bring(s3.location("no/such"), into)
    with pytest.raises(DataError, match="HTTP 404 NoSuchBucket"):
        bring(Location("s3://no-such-bucket/f", endpoint=s3.endpoint, region="us-east-1"), into)
    assert time.monotonic() - began < s3.retry_s / 2
    assert unfinished(into) == []


def test_folders_are_refused_with_a_remedy(s3, into):
    s3.client().put_object(Bucket=s3.bucket, Key="images/1.png", Body=b"1")
    for key in ("/images/", "", "/"):
        with pytest.raises(DataError, match=r"is a prefix, not an object; .*\nPack them into one archive"):
            bring(Location(f"s3://{s3.bucket}{key}", endpoint=s3.endpoint, region="us-east-1"), into, None)


@pytest.mark.parametrize(
    "fault",
    [status(503), status(500), status(429), reset(), cut_answer(1000), cut_answer(0)],
    ids=["503", "500", "429", "reset", "cut", "cut-at-0"],
)
def test_transient_faults_are_tried_again(proxy, moto_s3, into, fault):
    proxy.script([None, fault, None, fault, None, fault], when=get)
    assert bring(moto_s3.location("f.bin", endpoint=proxy.endpoint), into).read_bytes() == BODY
    assert proxy.count(get) > 4  # how many of the faults strike depends on the threads


def test_a_part_that_does_not_come_begins_the_object_anew(proxy, moto_s3, into):
    proxy.script([None, None, *[cut_answer(1000)] * 20], when=get)
    assert bring(moto_s3.location("f.bin", endpoint=proxy.endpoint), into).read_bytes() == BODY


def test_down_for_good_is_given_up_after_its_time(proxy, moto_s3, into):
    proxy.script([None, None], when=get)
    proxy.script(status(503), when=get)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"HTTP 503 SlowDown.\n1.5 s of retries received nothing beyond byte"):
        bring(moto_s3.location("f.bin", endpoint=proxy.endpoint, retry_s=1.5), into)
    assert 1.5 <= time.monotonic() - began < 60
    assert unfinished(into) == []


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("code", ["AccessDenied", "ExpiredToken"])
def test_permanent_errors_end_it_at_once(proxy, moto_s3, into, code, after):
    proxy.script([None] * after, when=get)
    proxy.script(status(403, code), when=get)
    with pytest.raises(DataError, match=rf"GET s3://{moto_s3.bucket}/f.bin.*HTTP 403 {code}") as refusal:
        bring(moto_s3.location("f.bin", endpoint=proxy.endpoint), into)
    assert refusal.value.exit_code == 4


def test_a_flipped_byte_is_found_by_the_checksum(proxy, moto_s3, into):
    proxy.script([None, None, flip_answer(500)], when=get)
    with pytest.raises(DataError, match=f"expected sha256 {SHA256}"):
        bring(moto_s3.location("f.bin", endpoint=proxy.endpoint), into)


NEW = BODY[::-1] + b"longer"


@pytest.mark.parametrize("nth", [2, 3, 4])
def test_an_object_that_changes_on_the_way_arrives_as_it_is_now(s3, into, nth):
    """It changes before the server gets the nth request."""
    s3.client().put_object(Bucket=s3.bucket, Key="f.bin", Body=BODY)
    with FaultProxy(s3.endpoint) as proxy:
        change = asked(lambda: s3.client().put_object(Bucket=s3.bucket, Key="f.bin", Body=NEW))
        proxy.script([None] * (nth - 1) + [change], when=get)
        assert bring(s3.location("f.bin", endpoint=proxy.endpoint), into, None).read_bytes() == NEW


@pytest.mark.parametrize("fault", [stall(), stall(50_000), status(503)], ids=["silent", "stalled", "503"])
def test_a_stop_takes_effect_within_about_a_second(proxy, moto_s3, into, fault):
    proxy.script([None] * 2, when=get)
    proxy.script(fault, when=get)
    asked_at = []

    def should_stop():
        if proxy.count(get) > 2:
            asked_at.append(time.monotonic())
        return bool(asked_at)

    with pytest.raises(RunStopped):
        bring(moto_s3.location("f.bin", endpoint=proxy.endpoint), into, should_stop=should_stop)
    assert time.monotonic() - asked_at[0] < 10  # 0.5 s on an idle machine; a read alone may hang for 20 s
    proxy.calm()
    assert bring(moto_s3.location("f.bin", endpoint=proxy.endpoint), into).read_bytes() == BODY
    assert unfinished(into) == []


def test_after_a_kill_the_object_begins_anew(proxy, moto_s3, into):
    location = moto_s3.location("f.bin", endpoint=proxy.endpoint)
    proxy.script([None] * 2, when=get)
    proxy.script(stall(50_000), when=get)
    with child(into=into, **vars(location)) as process:
        assert wait_until(lambda: proxy.count(get) > 2, 60, 0.01)
        process.kill()
    proxy.calm()
    before = proxy.count(get)
    assert bring(location, into, None).read_bytes() == BODY
    assert 4 <= proxy.count(get) - before <= 5  # the last request of the killed process may come late
    assert unfinished(into) == []
