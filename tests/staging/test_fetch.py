"""Fetching one file, from servers that cut, stall, lie and change."""

import errno
import hashlib
import os
import random
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertrain.errors import DataError, JobError, StorageError
from clustertrain.staging import http as sources
from clustertrain.staging import local_file, source
from clustertrain.staging import partial_file as part
from clustertrain.staging.fetch import fetch, open_source
from clustertrain.staging.partial_file import read_progress
from clustertrain.staging.source import Source, masked
from clustertrain.storage.location import Location
from web import Answer, serving

pytestmark = pytest.mark.usefixtures("no_pauses")

BODY = random.Random(1).randbytes(300_000)
SHA256 = hashlib.sha256(BODY).hexdigest()


def get(uri, folder, sha256=None, tick=lambda *_: None):
    fetched = fetch(open_source(Location(uri)), folder, uri=uri, sha256=sha256, tick=tick)
    data = fetched.path.read_bytes()
    assert (fetched.size_bytes, fetched.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    return data


def test_a_good_server(web, folder):
    ticks = []
    assert get(f"{web.url}/f", folder, SHA256, lambda *tick: ticks.append(tick)) == BODY
    assert web.ranges == [None]
    assert ticks[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in ticks] == sorted(done for done, _ in ticks)


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_an_empty_file(web, folder, framing):
    web.files["/f"] = b""
    web.answers = [Answer(framing=framing)]
    assert get(f"{web.url}/f", folder) == b""


CUT = Answer(cut_after=100_000)
REST = f"bytes=100000-{len(BODY) - 1}"


@pytest.mark.parametrize(
    ("server", "answers", "ranges"),
    [
        ({}, [CUT, Answer(cut_after=50_000)], [REST, f"bytes=150000-{len(BODY) - 1}"]),
        ({"etag": None, "last_modified": "Wed, 21 Oct 2015 07:28:00 GMT"}, [CUT], [REST]),
        ({"etag": None}, [CUT], [None]),
        ({"etag": 'W/"weak"'}, [CUT], [None]),
        ({"accepts_ranges": False}, [CUT], [None]),
        ({}, [CUT, Answer(ignores_range=True)], [REST, None]),
        ({}, [CUT, Answer(shift=7)], [REST, None]),
        ({}, [Answer(says_length=len(BODY) + 1)], [f"bytes={len(BODY)}-{len(BODY)}", None]),
    ],
    ids=["etag", "date", "no version", "weak", "none announced", "no ranges", "another range", "never there"],
)
def test_a_cut_is_resumed_only_with_proof_that_it_is_the_same(web, folder, server, answers, ranges):
    for name, value in server.items():
        setattr(web, name, value)
    web.answers = [replace(answer) for answer in answers]
    assert get(f"{web.url}/f", folder, SHA256) == BODY
    assert web.ranges == [None, *ranges]
    condition = web.etag or web.last_modified
    assert web.conditions == [condition if asked else None for asked in web.ranges]


def test_a_file_that_changes_between_two_tries(web, folder):
    web.answers = [Answer(cut_after=100_000)]

    def change(done, total):
        web.files["/f"], web.etag = BODY[::-1] + b"longer", '"two"'

    assert get(f"{web.url}/f", folder, tick=change) == BODY[::-1] + b"longer"


def test_a_server_that_ignores_if_range(web, folder):
    web.answers = [Answer(cut_after=100_000), Answer(ignores_condition=True)]

    def change(done, total):
        web.files["/f"], web.etag = BODY[::-1], '"two"'

    assert get(f"{web.url}/f", folder, tick=change) == BODY[::-1]


def test_the_checksum_distinguishes_two_versions_with_one_etag(web, folder):
    """And the whole file is requested once more."""
    web.answers = [Answer(cut_after=100_000), Answer(etag='"one"')]
    real = web.files["/f"]

    def change(done, total):
        web.files["/f"] = real[::-1]

    assert get(f"{web.url}/f", folder, hashlib.sha256(real[::-1]).hexdigest(), tick=change) == real[::-1]


def test_a_server_that_always_cuts_at_one_place(web, folder, half_a_second_of_retries):
    web.etag = None
    web.answers = [Answer(cut_after=1000)] * 2000
    with pytest.raises(DataError, match=rf"1000 of {len(BODY)} bytes were received") as refusal:
        get(f"{web.url}/f", folder)
    assert len(web.ranges) > 2
    assert "0.5 s of retries received nothing beyond byte 1000" in str(refusal.value)


def test_progress_renews_the_time_of_the_retries(web, folder, monkeypatch):
    monkeypatch.setattr(source, "BACKOFF_S", 0.1)
    monkeypatch.setattr(Source, "retry_s", 0.2)
    web.answers = [Answer(cut_after=1000)] * 10
    began = time.monotonic()
    assert get(f"{web.url}/f", folder, SHA256) == BODY
    assert time.monotonic() - began > 0.4
    assert len(web.ranges) == 11


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 522])
def test_transient_errors_are_retried(web, folder, status):
    web.answers = [Answer(status=status)] * 2
    assert get(f"{web.url}/f", folder, SHA256) == BODY
    assert len(web.ranges) == 3


@pytest.mark.parametrize(
    ("status", "remedy"), [(404, "Correct the address"), (401, "use its path"), (403, "use its path")]
)
def test_permanent_errors_are_not_retried(web, folder, status, remedy):
    web.answers = [Answer(status=status)] * 9
    with pytest.raises(DataError, match=rf"HTTP {status}.*\n.*{remedy}") as refusal:
        get(f"{web.url}/f?token=secret", folder)
    assert len(web.ranges) == 1
    assert "secret" not in str(refusal.value)
    assert refusal.value.exit_code == 4


def test_a_closed_port_is_given_up_after_a_time(folder, monkeypatch, half_a_second_of_retries):
    tries = []
    real = sources.HttpSource.read_range
    monkeypatch.setattr(sources.HttpSource, "read_range", lambda *args: tries.append(1) or real(*args))
    with serving() as web:
        url = web.url
    with pytest.raises(DataError, match="refused"):
        get(f"{url}/f", folder)
    assert len(tries) > 2


def test_a_server_that_falls_silent_is_left_after_the_timeout(web, folder, monkeypatch):
    monkeypatch.setattr(sources, "ANSWER_S", 0.5)
    web.answers = [Answer(hold_after=100_000)]
    assert get(f"{web.url}/f", folder, SHA256) == BODY
    assert web.ranges == [None, REST]


def test_a_length_is_needed(web, folder):
    web.answers = [Answer(framing="none")]
    with pytest.raises(DataError, match="the server sends no length"):
        get(f"{web.url}/f", folder)


def test_chunked_is_as_good_and_its_cut_is_seen(web, folder):
    web.answers = [Answer(framing="chunked", cut_after=100_000), Answer(framing="chunked")]
    assert get(f"{web.url}/f", folder, SHA256) == BODY
    assert len(web.ranges) == 2


def test_redirects_are_followed(web, folder):
    web.answers = [Answer(status=302, location="/f")]
    web.files["/old"] = b""
    assert get(f"{web.url}/old", folder, SHA256) == BODY


def test_a_file_that_does_not_fit_is_refused_before_the_download(web, folder):
    web.answers = [Answer(says_length=1 << 60)]
    with pytest.raises(StorageError, match=r"does not fit: \d{19} bytes are missing, \d+ are free"):
        get(f"{web.url}/f", folder)


def test_a_full_disk_is_reported(web, folder, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(part.os, "pwrite", full)
    with pytest.raises(OSError, match="No space left on device"):  # stage() explains it
        get(f"{web.url}/f", folder)


@pytest.mark.parametrize("uri", ["http://me:secret@h/f", "https://me:secret@h/f?x=1"])
def test_credentials_in_a_uri_are_refused_and_never_shown(uri):
    with pytest.raises(JobError) as refusal:
        open_source(Location(uri))
    assert "secret" not in str(refusal.value)
    assert "***@h/f" in str(refusal.value)


def test_masked():
    assert masked("https://u:p@h:1/a/b?X-Amz-Signature=s#f") == "https://***@h:1/a/b?…"
    assert masked("/plain/path?x") == "/plain/path?x"
    assert masked("http://h/f") == "http://h/f"


def test_unknown_schemes():
    with pytest.raises(JobError, match="ftp:// is not supported for data"):
        open_source(Location("ftp://host/file"))


class TestFiles:
    def test_a_pipe_is_no_data_set(self, tmp_path, folder):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(DataError, match="not a regular file"):
            get(str(tmp_path / "pipe"), folder)

    def test_one_that_changes_while_it_is_copied(self, tmp_path, folder, monkeypatch):
        """It changes after the first of its bytes were written."""
        monkeypatch.setattr(local_file, "CHUNK_BYTES", 1000)
        (tmp_path / "f").write_bytes(BODY)
        write, offsets = part.PartFile.write, []

        def changed_after(self, offset, data):
            write(self, offset, data)
            offsets.append(offset)
            if len(offsets) == 1:
                (tmp_path / "f").write_bytes(BODY[::-1])

        monkeypatch.setattr(part.PartFile, "write", changed_after)
        assert get(str(tmp_path / "f"), folder) == BODY[::-1]
        assert offsets[:2] == [0, 0]


class TestTakingOver:
    """Another process continues from the progress file of a killed one."""

    def interrupted(self, web, folder, after):
        """A folder with the first `after` bytes, recorded."""
        web.answers = [Answer(hold_after=after)]

        def stop(done, total):
            if done >= after:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            get(f"{web.url}/f", folder, tick=stop)
        assert read_progress(folder).size_bytes == after

    def test_what_is_complete_is_not_fetched_again(self, web, folder):
        self.interrupted(web, folder, len(BODY))
        assert get(f"{web.url}/f", folder, SHA256) == BODY
        assert web.ranges == [None]

    def test_a_part_that_is_longer_than_the_file(self, web, folder):
        self.interrupted(web, folder, 100_000)
        web.files["/f"], web.etag = BODY[:50_000], '"two"'
        assert get(f"{web.url}/f", folder) == BODY[:50_000]

    @pytest.mark.parametrize("etag", ['"one"', '"two"'])
    def test_a_part_that_is_shorter_than_recorded(self, web, folder, etag):
        self.interrupted(web, folder, 100_000)
        web.files["/f"], web.etag = BODY[:100_000], etag
        assert get(f"{web.url}/f", folder) == BODY[:100_000]

    def test_bytes_after_the_recorded_ones_are_not_used(self, web, folder):
        self.interrupted(web, folder, 100_000)
        with (folder / "download").open("ab") as file:
            file.write(BODY[::-1] * 2)
        assert get(f"{web.url}/f", folder, SHA256) == BODY
        assert web.ranges == [None, REST]

    def test_a_part_that_is_copied_is_as_good(self, web, folder, tmp_path):
        self.interrupted(web, folder, 100_000)
        (tmp_path / "copy").mkdir()
        part.copy_part(folder, tmp_path / "copy", lambda *_: None)
        assert get(f"{web.url}/f", tmp_path / "copy", SHA256) == BODY
        assert web.ranges == [None, REST]

    @pytest.mark.parametrize("note", ["", "{", "[]", '{"validator": "v", "total_bytes": 5}', "\0" * 4096])
    def test_an_unusable_progress_file(self, folder, note):
        """Also of an earlier release, whose pieces were in another format."""
        (folder / "progress").write_text(note)
        assert read_progress(folder) is None


@pytest.fixture(scope="module")
def shared_web():
    with serving() as web:
        web.files["/f"] = BODY[:20_000]
        yield web


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 20_000), max_size=5),
    ignores=st.lists(st.booleans(), min_size=5, max_size=5),
    etag=st.sampled_from(['"one"', None]),
)
def test_however_it_is_cut_the_bytes_are_exact(shared_web, tmp_path_factory, cuts, ignores, etag):
    shared_web.etag = etag
    shared_web.answers = [
        Answer(cut_after=cut, ignores_range=i) for cut, i in zip(cuts, ignores, strict=False)
    ]
    folder = tmp_path_factory.mktemp("part")
    assert get(f"{shared_web.url}/f", folder) == BODY[:20_000]


def test_a_stop_during_a_pause_takes_effect(web, folder, monkeypatch):
    monkeypatch.setattr(source, "BACKOFF_S", 1000.0)
    web.answers = [Answer(status=503)]
    asked = threading.Event()

    def stop(done, total):
        asked.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(f"{web.url}/f", folder, tick=stop)
    assert asked.is_set()
