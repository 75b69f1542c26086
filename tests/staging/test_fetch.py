"""Fetching one file, from servers that cut, stall, lie and change."""

import hashlib
import os
import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertrain.errors import DataError, JobError, StorageError
from clustertrain.node.waiting import wait_until
from clustertrain.staging import fetch as fetch_module
from clustertrain.staging import http, source
from clustertrain.staging.fetch import fetch
from clustertrain.staging.part import Download
from clustertrain.staging.source import masked
from clustertrain.storage.location import Location
from support.web_server import Answer, serving

pytestmark = pytest.mark.usefixtures("no_pauses")

BODY = random.Random(1).randbytes(300_000)
SHA256 = hashlib.sha256(BODY).hexdigest()


def get(uri, folder, sha256=None, tick=lambda *_: None):
    part = Download(folder, masked(uri))
    found = fetch(Location(uri), part, sha256=sha256, tick=tick)
    data = part.path.read_bytes()
    assert found == hashlib.sha256(data).hexdigest()
    return data


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_an_empty_file_arrives(web, folder, framing):
    web.files["/f"] = b""
    web.answers = [Answer(framing=framing)]
    assert get(f"{web.url}/f", folder) == b""


CUT = Answer(cut_after=100_000)
REST = "bytes=100000-"


@pytest.mark.parametrize(
    ("server", "answers", "ranges"),
    [
        ({}, [CUT, Answer(cut_after=50_000)], [REST, "bytes=150000-"]),
        ({"etag": None, "last_modified": "Wed, 21 Oct 2015 07:28:00 GMT"}, [CUT], [REST]),
        ({"etag": None}, [CUT], [None]),
        ({"etag": 'W/"weak"'}, [CUT], [None]),
        ({}, [CUT, Answer(ignores_range=True)], [REST]),
        ({}, [CUT, Answer(shift=7)], [REST, None]),
        ({}, [Answer(says_length=len(BODY) + 1)], [f"bytes={len(BODY)}-", None]),
    ],
    ids=["etag", "date", "no version", "weak", "no ranges", "another range", "never there"],
)
def test_a_cut_is_resumed_only_with_proof_that_it_is_the_same(web, folder, server, answers, ranges):
    for name, value in server.items():
        setattr(web, name, value)
    web.answers = [replace(answer) for answer in answers]
    assert get(f"{web.url}/f", folder, SHA256) == BODY
    assert web.ranges == [None, *ranges]
    condition = web.etag or web.last_modified
    assert web.conditions == [condition if asked else None for asked in web.ranges]


@pytest.mark.parametrize(
    ("answers", "new"), [([], BODY[::-1] + b"longer"), ([Answer(ignores_condition=True)], BODY[::-1])]
)
def test_a_file_that_changes_between_two_tries_comes_whole(web, folder, answers, new):
    web.answers = [replace(CUT), *map(replace, answers)]

    def change(done, total):
        web.files["/f"], web.etag = new, '"two"'

    assert get(f"{web.url}/f", folder, tick=change) == new


def test_the_checksum_finds_two_versions_with_one_etag(web, folder):
    """And the next start fetches the whole file."""
    web.answers = [Answer(cut_after=100_000)]
    new = BODY[::-1]

    def change(done, total):
        web.files["/f"] = new

    sha256 = hashlib.sha256(new).hexdigest()
    with pytest.raises(DataError, match=f"expected sha256 {sha256}"):
        get(f"{web.url}/f", folder, sha256, tick=change)
    assert get(f"{web.url}/f", folder, sha256) == new
    assert web.ranges == [None, REST, None]


def test_a_server_that_always_cuts_at_one_place(web, folder, half_a_second_of_retries):
    web.etag = None
    web.answers = [Answer(cut_after=1000)] * 2000
    with pytest.raises(DataError, match=rf"1000 of {len(BODY)} bytes were received") as refusal:
        get(f"{web.url}/f", folder)
    assert len(web.ranges) > 2
    assert "0.5 s of retries received nothing beyond byte 1000" in str(refusal.value)


def test_progress_renews_the_time_of_the_retries(web, folder, monkeypatch):
    monkeypatch.setattr(source, "BACKOFF_S", 0.1)
    monkeypatch.setattr(fetch_module, "WEB_RETRY_S", 0.2)
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


@pytest.mark.parametrize("status", [404, 401, 403])
def test_permanent_errors_are_not_retried(web, folder, status):
    web.answers = [Answer(status=status)] * 9
    with pytest.raises(
        DataError, match=rf"HTTP {status}.*\nCorrect the address, or .* use its path"
    ) as refusal:
        get(f"{web.url}/f?token=secret", folder)
    assert len(web.ranges) == 1
    assert "secret" not in str(refusal.value)
    assert refusal.value.exit_code == 4


def test_a_server_that_falls_silent_is_left_after_the_timeout(web, folder, monkeypatch):
    monkeypatch.setattr(http, "ANSWER_S", 0.5)
    web.answers = [Answer(hold_after=100_000)]
    assert get(f"{web.url}/f", folder, SHA256) == BODY
    assert web.ranges == [None, REST]


def test_chunked_is_as_good_and_its_cut_is_seen(web, folder):
    web.answers = [Answer(framing="chunked", cut_after=100_000), Answer(framing="chunked")]
    assert get(f"{web.url}/f", folder, SHA256) == BODY
    assert len(web.ranges) == 2


def test_redirects_are_followed(web, folder):
    web.answers = [Answer(status=302, location="/f")]
    web.files["/old"] = b""
    assert get(f"{web.url}/old", folder, SHA256) == BODY


def test_a_file_without_room_is_refused(web, folder):
    web.answers = [Answer(says_length=1 << 60)]
    with pytest.raises(StorageError, match=r"does not fit: \d{19} bytes, \d+ are free"):
        get(f"{web.url}/f", folder)


@pytest.mark.parametrize("uri", ["http://me:secret@h/f", "https://me:secret@h/f?x=1"])
def test_credentials_in_a_uri_are_refused_and_never_shown(folder, uri):
    with pytest.raises(JobError) as refusal:
        get(uri, folder)
    assert "secret" not in str(refusal.value)
    assert "***@h/f" in str(refusal.value)


def test_an_unknown_scheme_is_refused(folder):
    with pytest.raises(JobError, match="ftp:// is not supported for data"):
        get("ftp://host/file", folder)


class TestFiles:
    def test_a_pipe_is_no_data_set(self, tmp_path, folder):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(DataError, match="not a regular file"):
            get(str(tmp_path / "pipe"), folder)

    def test_one_that_changes_while_it_is_copied(self, tmp_path, folder, monkeypatch):
        """It changes after the first of its bytes were written."""
        monkeypatch.setattr(fetch_module, "CHUNK_BYTES", 1000)
        (tmp_path / "f").write_bytes(BODY)
        count, changes = Download.count, []

        def changed_after(self, more_bytes):
            count(self, more_bytes)
            if not changes:
                changes.append((tmp_path / "f").write_bytes(BODY[::-1]))

        monkeypatch.setattr(Download, "count", changed_after)
        assert get(str(tmp_path / "f"), folder) == BODY[::-1]


class TestTakingOver:
    """Another process continues with what a killed one has received."""

    def interrupted(self, web, folder, after):
        """A folder with the first `after` bytes."""
        web.answers = [Answer(hold_after=after)]

        def stop(done, total):
            if done >= after:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            get(f"{web.url}/f", folder, tick=stop)
        web.go_on.set()
        assert wait_until(lambda: Download(folder, "f").received_bytes == after, 60, 0.01)

    def test_a_part_that_is_longer_than_the_file(self, web, folder):
        self.interrupted(web, folder, 100_000)
        web.files["/f"], web.etag = BODY[:50_000], '"two"'
        assert get(f"{web.url}/f", folder) == BODY[:50_000]

    @pytest.mark.parametrize("etag", ['"one"', '"two"'])
    def test_a_part_that_is_as_long_as_the_file(self, web, folder, etag):
        self.interrupted(web, folder, 100_000)
        web.files["/f"], web.etag = BODY[:100_000], etag
        assert get(f"{web.url}/f", folder) == BODY[:100_000]

    @pytest.mark.parametrize("lost", ["validator", "download.part"])
    def test_bytes_of_no_version_are_not_used(self, web, folder, lost):
        self.interrupted(web, folder, 100_000)
        (folder / lost).unlink()
        assert get(f"{web.url}/f", folder, SHA256) == BODY
        assert web.ranges == [None, None]


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
