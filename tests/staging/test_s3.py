"""Staging in several streams: from two S3 servers and from the web, through every fault on the way."""

import hashlib
import itertools
import json
import os
import random
import sys
import threading
import time
from contextlib import closing

import pytest
from test_stage import child, unfinished

from clustertrain.errors import DataError, RunStopped
from clustertrain.staging import fetch as fetch_module
from clustertrain.staging import source
from clustertrain.staging.fetch import open_source
from clustertrain.staging.partial_file import PartFile, Progress, read_progress
from clustertrain.staging.source import NotThatRange, Source, Stream
from clustertrain.staging.stage import stage
from clustertrain.storage.location import Location
from commands import ran
from fault_proxy import FaultProxy, answered, asked, cut_answer, flip_answer, get, reset, stall, status
from s3_servers import ENVIRONMENT
from web import Answer

BODY = random.Random(3).randbytes(3 << 20)
SHA256 = hashlib.sha256(BODY).hexdigest()
PIECE = 1 << 17


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """24 pieces, so that eight streams have something to do, in a file that is quickly made."""
    monkeypatch.setattr(fetch_module, "PART_BYTES", PIECE)
    monkeypatch.setattr(source, "BACKOFF_S", 0.01)


@pytest.fixture
def proxy(moto_s3):
    moto_s3.client().put_object(Bucket=moto_s3.bucket, Key="f.bin", Body=BODY)
    with FaultProxy(moto_s3.endpoint) as proxy:
        yield proxy


def bring(location, into, sha256=SHA256, extract=False, **options):
    return stage("d", location, sha256=sha256, extract=extract, into=into, **options)


def bytes_requested(proxy):
    """How many bytes the requests for ranges named together."""
    total = 0
    for request in proxy.requests:
        if "range" in request.headers:
            first, last = request.headers["range"].removeprefix("bytes=").split("-")
            total += min(int(last) + 1, len(BODY)) - int(first)
    return total


# -------------------------------------------------------------------------------------------- two servers


@pytest.mark.parametrize("name", ["f.bin", "größe datei%20 100%.bin"])
def test_an_object_arrives_under_its_name(s3, into, name):
    s3.client().put_object(Bucket=s3.bucket, Key=f"a/{name}", Body=BODY)
    path = bring(s3.location(f"a/{name}"), into)
    assert path.name == name
    assert path.read_bytes() == BODY
    assert unfinished(into) == []


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_of_any_size(s3, into, size):
    s3.client().put_object(Bucket=s3.bucket, Key="f", Body=BODY[:size])
    sha256 = hashlib.sha256(BODY[:size]).hexdigest()
    assert bring(s3.location("f"), into, sha256).read_bytes() == BODY[:size]


def test_a_missing_object_is_reported_at_once(s3, into):
    began = time.monotonic()
    with pytest.raises(
        DataError, match=rf"GET s3://{s3.bucket}/no/such .*HTTP 404 NoSuchKey.*\n.*no such object"
    ):
        bring(s3.location("no/such"), into)
    with pytest.raises(DataError, match=r"HTTP 404 NoSuchBucket.*\n.*no such bucket"):
        bring(Location("s3://no-such-bucket/f", endpoint=s3.endpoint, region="us-east-1"), into)
    assert time.monotonic() - began < s3.retry_s / 2
    assert unfinished(into) == []


def test_folders_are_refused_with_a_remedy(s3, into):
    s3.client().put_object(Bucket=s3.bucket, Key="images/1.png", Body=b"1")
    for key in ("/images/", "", "/"):
        with pytest.raises(DataError, match=r"is a prefix, not an object; .*\nPack them into one archive"):
            bring(Location(f"s3://{s3.bucket}{key}", endpoint=s3.endpoint, region="us-east-1"), into, None)
    with pytest.raises(DataError, match=r"no such object .*pack the objects of a prefix into one archive"):
        bring(s3.location("images"), into, None)


# ------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "fault",
    [status(503), status(500), status(429), reset(), cut_answer(PIECE // 4 - 1), cut_answer(0)],
    ids=["503", "500", "429", "reset", "cut", "cut-at-0"],
)
def test_transient_faults_cost_only_the_lost_bytes(proxy, moto_s3, into, fault):
    """Four cuts of one part are possible, so each leaves a rest that is long enough for the next one."""
    proxy.script([None, fault, None, fault, fault, None, fault], when=get)
    assert bring(moto_s3.location("f.bin", endpoint=proxy.endpoint), into).read_bytes() == BODY
    assert proxy.count(get) >= 24 + 4


def test_every_answer_is_cut_once(proxy, moto_s3, into):
    proxy.script([cut_answer(100_000), None] * 24, when=get)
    assert bring(moto_s3.location("f.bin", endpoint=proxy.endpoint), into).read_bytes() == BODY
    assert bytes_requested(proxy) < 2 * len(BODY)


def test_streams_work_at_the_same_time(proxy, moto_s3, into):
    """After the first answer, which has the length, seven more are held until all seven were asked for."""
    all_seven = threading.Barrier(7)
    proxy.script([None, *[asked(lambda: all_seven.wait(60))] * 7], when=get)
    assert bring(moto_s3.location("f.bin", endpoint=proxy.endpoint), into).read_bytes() == BODY
    assert proxy.count(get) == 24


def test_down_for_good_is_given_up_after_its_time(proxy, moto_s3, into):
    proxy.script([None, None], when=get)
    proxy.script(status(503), when=get)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"HTTP 503 SlowDown.\n1.5 s of retries received nothing beyond byte"):
        bring(moto_s3.location("f.bin", endpoint=proxy.endpoint, retry_s=1.5), into)
    assert 1.5 <= time.monotonic() - began < 30
    proxy.calm()
    before = len(proxy.requests)
    assert bring(moto_s3.location("f.bin", endpoint=proxy.endpoint), into).read_bytes() == BODY
    # It went on from what the first one kept, whose threads may still have asked for something.
    asked_for = {request.headers.get("range") for request in proxy.requests[before:]}
    assert not asked_for & {None, f"bytes=0-{PIECE - 1}"}


CAUSES = {"AccessDenied": "lack the permission", "ExpiredToken": "credentials have expired"}


@pytest.mark.parametrize("after", [0, 5])
@pytest.mark.parametrize("code", CAUSES)
def test_permanent_errors_end_it_at_once(proxy, moto_s3, into, code, after):
    proxy.script([None] * after, when=get)
    proxy.script(status(403, code), when=get)
    with pytest.raises(
        DataError, match=rf"(?s)GET s3://{moto_s3.bucket}/f.bin.*HTTP 403.*{CAUSES[code]}"
    ) as refusal:
        bring(moto_s3.location("f.bin", endpoint=proxy.endpoint), into)
    assert refusal.value.exit_code == 4


def test_a_flipped_byte_is_found_by_the_checksum(proxy, moto_s3, into):
    proxy.script([None, None, flip_answer(1000)], when=get)
    with pytest.raises(DataError, match=f"expected sha256 {SHA256}"):
        bring(moto_s3.location("f.bin", endpoint=proxy.endpoint), into)


NEW = BODY[::-1] + b"longer"


@pytest.fixture
def changing(s3):
    """A proxy before a server, the location of an object there, and a function that replaces the object."""
    s3.client().put_object(Bucket=s3.bucket, Key="f.bin", Body=BODY)
    with FaultProxy(s3.endpoint) as proxy:
        location = s3.location("f.bin", endpoint=proxy.endpoint)
        yield proxy, location, lambda: s3.client().put_object(Bucket=s3.bucket, Key="f.bin", Body=NEW)


@pytest.mark.parametrize("nth", [2, 12, 24])
def test_an_object_that_changes_on_the_way_arrives_as_it_is_now(changing, into, nth):
    """It changes before the server is asked for the nth of 24 parts."""
    proxy, location, change = changing
    proxy.script([None] * (nth - 1) + [asked(change)], when=get)
    assert bring(location, into, None).read_bytes() == NEW


def test_an_object_that_changes_after_its_last_part_was_asked_for_arrives_as_it_was(changing, into):
    """It changes when the server has answered for all 24 parts, and the last of them has not arrived."""
    proxy, location, change = changing
    answers = itertools.count(1)
    proxy.script(answered(lambda: next(answers) == 24 and change()), when=get)
    assert bring(location, into, None).read_bytes() == BODY
    assert next(answers) == 24 + 1


class Changing(Source):
    """Three parts. The second one of the old version arrives while the new version is fetched, before the
    last bytes of that."""

    def __init__(self):
        self.is_fetched_anew, self.old_arrived = threading.Event(), threading.Event()

    def read_range(self, offset, end, validator):
        if offset == 2 * PIECE:
            self.has_changed = True
            raise NotThatRange("it changed")
        if offset == PIECE:
            return Stream(self.old_blocks(), self.old_arrived.set, None, validator)
        if hasattr(self, "has_changed"):
            self.is_fetched_anew.set()
            return Stream(self.new_blocks(), lambda: None, 3 * PIECE, '"new"')
        return Stream(iter([BODY[:PIECE]]), lambda: None, 3 * PIECE, '"old"')

    def old_blocks(self):
        assert self.is_fetched_anew.wait(30)
        yield BODY[PIECE : 2 * PIECE]

    def new_blocks(self):
        yield NEW[: 2 * PIECE]
        assert self.old_arrived.wait(30)
        yield NEW[2 * PIECE : 3 * PIECE]


def test_a_late_stream_of_an_old_version_writes_nothing_to_the_new_one(folder):
    file = fetch_module.fetch(Changing(), folder, uri="x", sha256=None, tick=lambda *_: None)
    assert file.path.read_bytes() == NEW[: 3 * PIECE]


@pytest.mark.parametrize("fault", [stall(), stall(50_000), status(503)], ids=["silent", "stalled", "503"])
def test_a_stop_takes_effect_within_about_a_second(proxy, moto_s3, into, fault):
    proxy.script([None] * 3, when=get)
    proxy.script(fault, when=get)
    asked_at = []

    def should_stop():
        if noted_bytes(into) > PIECE:
            asked_at.append(time.monotonic())
        return bool(asked_at)

    with pytest.raises(RunStopped):
        bring(moto_s3.location("f.bin", endpoint=proxy.endpoint), into, should_stop=should_stop)
    assert time.monotonic() - asked_at[0] < 10  # 1.5 s on an idle machine; a read alone may hang for 20 s
    kept = noted_bytes(into)
    assert kept > PIECE
    proxy.calm()
    before = bytes_requested(proxy)
    assert bring(moto_s3.location("f.bin", endpoint=proxy.endpoint), into).read_bytes() == BODY
    assert bytes_requested(proxy) - before == len(BODY) - kept


def noted_bytes(into):
    found = [read_progress(path) for path in into.glob(".*.part")]
    return sum(part.size_bytes for part in found if part is not None)


# -------------------------------------------------------------------------------------------- kills


def test_a_kill_loses_no_recorded_byte(proxy, moto_s3, into):
    """Killed in the middle of eight streams, twice: four parts have arrived, and all streams wait in a part,
    which is lost. Each start requests exactly the missing bytes."""
    location = moto_s3.location("f.bin", endpoint=proxy.endpoint)
    for parts in (4, 8):
        proxy.script([None] * 4, when=get)
        proxy.script(stall(50_000), when=get)
        asked_for = proxy.count(get) + 4 + fetch_module.STREAMS
        with child(into=into, part_bytes=PIECE, **vars(location)) as process:
            wait_for(lambda kept=parts * PIECE: noted_bytes(into) >= kept or process.poll() is not None)
            wait_for(lambda count=asked_for: proxy.count(get) >= count or process.poll() is not None)
            process.kill()
        proxy.calm()
        assert noted_bytes(into) == parts * PIECE
    kept, before = noted_bytes(into), bytes_requested(proxy)
    (download,) = into.glob(".*.part/download")
    inode = download.stat().st_ino
    path = bring(location, into, None)
    assert path.read_bytes() == BODY
    assert path.stat().st_ino == inode  # a dead holder's file is taken over, not copied
    assert bytes_requested(proxy) - before == len(BODY) - kept
    assert unfinished(into) == []


def wait_for(holds):
    ends = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends, "waited 60 s in vain"
        time.sleep(0.01)


# ------------------------------------------------------------------------------------------------ the web


@pytest.mark.parametrize(
    ("etag", "date"), [('"one"', None), ('W/"weak"', "Wed, 21 Oct 2015 07:28:00 GMT")], ids=["etag", "date"]
)
def test_the_web_is_read_in_ranges_where_it_gives_them(web, into, etag, date):
    web.etag, web.last_modified = etag, date
    assert bring(Location(f"{web.url}/f"), into).read_bytes() == BODY
    assert len(web.ranges) == 24  # the first one asks for the whole, and stops to read after its piece
    assert set(web.conditions[1:]) == {date or etag}


@pytest.mark.parametrize("etag", ['W/"weak"', None])
def test_without_a_strong_validator_it_is_read_from_the_front(web, into, etag):
    web.etag = etag
    assert bring(Location(f"{web.url}/f"), into).read_bytes() == BODY
    assert web.ranges == [None]


def test_a_server_that_announces_ranges_and_sends_none(web, into):
    web.answers = [Answer(ignores_range=True)] * 100
    assert bring(Location(f"{web.url}/f"), into).read_bytes() == BODY


@pytest.mark.parametrize("ignores_range", [False, True])
def test_a_part_with_gaps_is_completed(web, tmp_path, ignores_range):
    """A server that sends no ranges any more is read from the front."""
    web.answers = [Answer(ignores_range=ignores_range)] * 50
    with closing(PartFile(tmp_path, Progress.nothing('"one"', len(BODY)))) as part:
        for index in (0, 2, 3, 7):
            put(part, index * PIECE, (index + 1) * PIECE)
    location = Location(f"{web.url}/f")
    part = fetch_module.fetch(
        open_source(location), tmp_path, uri=location.uri, sha256=SHA256, tick=lambda *_: None
    )
    assert part.path.read_bytes() == BODY
    if not ignores_range:
        assert len(web.ranges) == 20


def test_an_s3_server_without_ranges(web, into, aws_environment):
    """Amazon's protocol is HTTP: any server that answers a GET with the whole does."""
    web.files["/bucket/f"] = BODY
    web.answers = [Answer(ignores_range=True)] * 50
    location = Location("s3://bucket/f", endpoint=web.url, region="us-east-1", addressing="path")
    assert bring(location, into).read_bytes() == BODY
    assert web.ranges[-1] is None


def test_an_s3_server_without_etags_is_read_from_the_front(web, into, aws_environment):
    web.files["/bucket/f"] = BODY
    web.etag, web.last_modified = None, "Wed, 21 Oct 2015 07:28:00 GMT"
    location = Location("s3://bucket/f", endpoint=web.url, region="us-east-1", addressing="path")
    assert bring(location, into).read_bytes() == BODY
    assert len(web.ranges) == 1


def test_each_cut_on_the_web_is_retried(web, into):
    web.answers = [Answer(cut_after=50_000)] * 60
    assert bring(Location(f"{web.url}/f"), into).read_bytes() == BODY


# ----------------------------------------------------------------------------------------------- the part


def put(part, start, end):
    part.write(start, BODY[start:end])


def test_pieces_in_any_order_become_the_file(tmp_path):
    order = list(range(0, len(BODY), PIECE))
    random.Random(4).shuffle(order)
    with closing(PartFile(tmp_path, Progress.nothing('"v"', len(BODY)))) as part:
        for at in order:
            put(part, at, at + 1000)
            put(part, at + 1000, at + PIECE)
        assert part.progress.gaps == []
    assert part.path.read_bytes() == BODY


def test_gaps_are_what_is_missing():
    end = 3 * PIECE + 5
    progress = Progress.nothing('"v"', end).plus(0, 100).plus(PIECE, 2 * PIECE)
    assert progress.gaps == [(100, PIECE), (2 * PIECE, end)]
    assert progress.size_bytes == PIECE + 100
    assert progress.plus(100, PIECE).gaps == [(2 * PIECE, end)]
    assert progress.plus(0, end) == Progress('"v"', end, [])
    assert Progress.nothing('"v"', 0).gaps == []
    assert Progress.nothing().plus(0, 9).size_bytes == 9


def test_only_saved_bytes_are_recorded(tmp_path):
    """Another process may find the file at any moment: what it lists is on the disk."""
    part = PartFile(tmp_path, Progress.nothing('"v"', len(BODY)))
    put(part, 0, 10)
    assert read_progress(tmp_path) is None
    part.save()
    put(part, 10, 20)
    assert read_progress(tmp_path).size_bytes == 10
    part.close()
    assert read_progress(tmp_path).size_bytes == 20
    part.close()


def test_what_has_no_version_is_not_recorded(tmp_path):
    with closing(PartFile(tmp_path, Progress.nothing(None, len(BODY)))) as part:
        put(part, 0, 10)
    assert read_progress(tmp_path) is None


def test_a_part_of_another_version_is_another_file(tmp_path):
    """A holder that was stopped may still have the old one open."""
    old = PartFile(tmp_path, Progress.nothing('"old"', len(BODY)))
    new = PartFile(tmp_path, Progress.nothing('"new"', len(BODY)))
    old.write(0, b"x" * 1000)
    put(new, 0, 10)
    assert (tmp_path / "download").read_bytes() == BODY[:10]
    old.close()
    new.close()
    assert read_progress(tmp_path).size_bytes == 10


def test_a_stream_that_was_abandoned_writes_nothing_more(tmp_path):
    part = PartFile(tmp_path, Progress.nothing('"v"', len(BODY)))
    put(part, 0, 10)
    part.close()
    with pytest.raises(ValueError, match="closed file"):
        put(part, 10, 20)
    assert (tmp_path / "download").read_bytes() == BODY[:10]
    assert read_progress(tmp_path).size_bytes == 10


# ---------------------------------------------------------------------------------------------- memory

MEMORY = """
import json, resource, sys
from pathlib import Path
from clustertrain.staging.stage import stage
from clustertrain.storage.location import Location
from clustertrain.storage.s3_client import connect
location = Location(**json.loads(sys.argv[1]))
connect(location)
baseline = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stage("d", location, sha256=None, extract=False, into=Path(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - baseline)
"""


@pytest.mark.s3
def test_memory_is_bounded(versitygw_s3, tmp_path):
    """400 MiB in eight streams of real size: under 256 MiB above the baseline, whatever the size."""
    size = 400 << 20
    with (tmp_path / "big").open("wb") as file:
        file.truncate(size)
    versitygw_s3.client().upload_file(str(tmp_path / "big"), versitygw_s3.bucket, "big")
    location = versitygw_s3.location("big").__dict__
    done = ran(
        [sys.executable, "-c", MEMORY, json.dumps(location), str(tmp_path / "data")],
        code=0,
        env={**os.environ, **ENVIRONMENT},
    )
    (found,) = [path for path in (tmp_path / "data").rglob("big") if path.is_file()]
    assert found.stat().st_size == size
    assert int(done.stdout) < 256 << 10
