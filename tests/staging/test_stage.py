"""A data set is staged once, complete and verified, with any number of callers and after kills."""

import errno
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from clustertrain.errors import DataError, RunStopped, StorageError
from clustertrain.observe.event_lines import line_of
from clustertrain.staging import fetch
from clustertrain.staging import stage as staging
from clustertrain.staging.entry import StagedData
from clustertrain.staging.stage import stage
from clustertrain.storage.location import Location
from support.kills import killed_at_every_point
from support.web_server import Answer

BODY = random.Random(2).randbytes(200_000)
SHA256 = hashlib.sha256(BODY).hexdigest()

CHILD = """
import json, sys
from pathlib import Path
from clustertrain.staging import source
from clustertrain.staging.stage import stage
from clustertrain.storage.location import Location
options = json.loads(sys.argv[1])
source.BACKOFF_S = 0.01
path = stage(
    "d", Location(**options["location"]), sha256=options["sha256"], extract=options["extract"],
    into=Path(options["into"]), lease_s=options["lease_s"],
    on_event=lambda event: print(json.dumps(event), flush=True),
)
print(json.dumps({"path": str(path)}), flush=True)
"""


@pytest.fixture
def web(web):
    web.files["/a.tar.gz"] = archive_of({"a/x": b"1" * 5000, "y": b"2"})
    return web


def archive_of(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def get(uri, into, sha256=None, extract=False, **options):
    return stage("d", Location(str(uri)), sha256=sha256, extract=extract, into=into, **options)


def child(uri, into, sha256=None, *, extract=False, lease_s=600.0, more="", **of_s3):
    """Another process that stages; its lines of stdout are events, the last one is the path."""
    options = {"location": {"uri": uri, **of_s3}, "into": str(into)}
    options |= {"sha256": sha256, "extract": extract, "lease_s": lease_s}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD + more, json.dumps(options)], stdout=subprocess.PIPE, text=True
    )


def path_from(process):
    with process:
        lines = process.stdout.readlines()
    assert process.returncode == 0
    return Path(json.loads(lines[-1])["path"])


def files_under(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def unfinished(into):
    return [p.name for p in into.iterdir() if p.name.startswith(".") and p.name != ".leases"]


# ------------------------------------------------------------------------------------------ one process


def test_a_file_keeps_its_name_and_comes_once(web, into):
    path = get(f"{web.url}/f", into, SHA256)
    assert path.name == "f"
    assert path.read_bytes() == BODY
    assert get(f"{web.url}/f", into, SHA256) == path
    assert web.ranges == [None]
    assert unfinished(into) == []
    marker = json.loads((path.parent.parent / "READY.json").read_text())
    assert (marker["sha256"], marker["bytes"], marker["uri"]) == (SHA256, len(BODY), f"{web.url}/f")


def test_a_file_is_staged_where_links_are_within_one_folder_only(web, into, monkeypatch):
    """As on BeeGFS before 7.4 and on AFS."""
    real = os.link

    def link(source, target):
        if Path(source).parent != Path(target).parent:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(source))
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    assert get(f"{web.url}/f", into).read_bytes() == BODY


def test_the_file_of_another_user_of_the_group_is_continued(web, into, monkeypatch):
    """Who stopped in the middle of it: only its owner may change the mode of a file."""

    def chmod(path, mode, **options):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(os, "chmod", chmod)
    assert get(f"{web.url}/f", into).read_bytes() == BODY


def test_the_same_content_from_another_place_is_the_same_data_set(web, into):
    web.files["/mirror/f"] = BODY
    assert get(f"{web.url}/f", into, SHA256.upper()) == get(f"{web.url}/mirror/f", into, SHA256)
    assert web.ranges == [None]


def test_file_and_folder_of_one_archive_are_two_things(web, into):
    assert get(f"{web.url}/a.tar.gz", into, extract=True).is_dir()
    assert get(f"{web.url}/a.tar.gz", into).is_file()


def test_a_staged_data_set_needs_no_network_no_lease_and_no_write_permission(web, into, monkeypatch):
    path = get(f"{web.url}/f", into)
    opened = len(web.ranges)
    monkeypatch.setattr(staging, "Contender", None)
    assert get(f"{web.url}/f", into) == path
    assert len(web.ranges) == opened


def test_a_url_without_checksum_keeps_its_first_download(web, into):
    path = get(f"{web.url}/f", into)
    web.files["/f"], web.etag = BODY[::-1], '"two"'
    assert get(f"{web.url}/f", into) == path
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("keep_mtime", [False, True])
def test_a_local_file_that_changed_is_another_data_set(tmp_path, into, keep_mtime):
    source = tmp_path / "train.bin"
    source.write_bytes(b"old")
    times = source.stat()
    first = get(source, into)
    source.write_bytes(b"new")
    if keep_mtime:
        os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = get(source, into)
    assert (first.read_bytes(), second.read_bytes()) == (b"old", b"new")
    assert get(f"file://{source}", into) == second


def test_a_removed_local_file_is_still_found_by_its_checksum(tmp_path, into):
    source = tmp_path / "train.bin"
    source.write_bytes(BODY)
    path = get(source, into, SHA256)
    source.unlink()
    assert get(source, into, SHA256) == path


@pytest.mark.parametrize(
    ("options", "key"), [({"extract": True}, "extract: true"), ({"sha256": SHA256}, "sha256")]
)
def test_a_folder_has_neither_checksum_nor_archive(tmp_path, into, options, key):
    with pytest.raises(DataError, match=f"{tmp_path} is a folder, and {key} is only for a file"):
        get(tmp_path, into, **options)


def test_what_is_missing_is_named(tmp_path, into, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for sha256 in (None, SHA256):
        with pytest.raises(DataError, match=f"nothing/here does not exist on .*{tmp_path}") as refusal:
            get("nothing/here", into, sha256)
        assert refusal.value.exit_code == 4
    assert not into.exists() or unfinished(into) == []


def test_a_wrong_checksum_leaves_nothing(web, into):
    with pytest.raises(DataError, match=f"(?s)expected sha256 {'0' * 64}.*received sha256 {SHA256}"):
        get(f"{web.url}/f", into, "0" * 64)
    assert [p.name for p in into.iterdir()] == [".leases"]


def test_a_bad_archive_leaves_nothing(web, into):
    for data, rule in (
        (archive_of({"../evil": b"1"}), r"'\.\.'"),
        (b"no archive", rf"^{web.url}/a.tar.gz cannot be unpacked: .*\nRemove extract if it is no tar"),
    ):
        web.files["/a.tar.gz"] = data
        with pytest.raises(DataError, match=rule):
            get(f"{web.url}/a.tar.gz", into, extract=True)
        assert [p.name for p in into.iterdir()] == [".leases"]
    assert not list(into.parent.rglob("evil"))


def test_a_disk_that_an_archive_has_filled_is_freed_and_the_archive_is_kept(web, into, monkeypatch):
    def full(archive, folder, *, tick):
        folder.mkdir()
        (folder / "half").write_bytes(BODY)
        raise StorageError("full")

    with monkeypatch.context() as patched:
        patched.setattr(staging, "extract_archive", full)
        with pytest.raises(StorageError, match="full"):
            get(f"{web.url}/a.tar.gz", into, extract=True)
    assert not list(into.rglob("half"))
    opened = len(web.ranges)
    get(f"{web.url}/a.tar.gz", into, extract=True)
    assert len(web.ranges) == opened


def test_a_folder_that_cannot_be_written_is_named(web, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=rf"{tmp_path}/file/data.* uid {os.geteuid()}: Not a directory"):
        get(f"{web.url}/f", tmp_path / "file" / "data")


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_bytes(b"cut")])
def test_content_that_was_lost_or_cut_is_fetched_again(web, into, spoil):
    path = get(f"{web.url}/f", into)
    spoil(path)
    assert get(f"{web.url}/f", into) == path
    assert path.read_bytes() == BODY


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("{", "Expecting property name"),
        ("[]", "it contains list, not an object"),
        ({"bytes": 10**30}, "does not fit into 64 bits"),
        ({"extract": ...}, "extract: Field required"),
    ],
)
def test_a_marker_that_is_damaged_is_an_error_that_names_it(web, into, change, what):
    path = get(f"{web.url}/a.tar.gz", into, extract=True)
    marker = path.parent / "READY.json"
    if isinstance(change, dict):
        value = {**json.loads(marker.read_text()), **change}
        change = json.dumps({key: item for key, item in value.items() if item is not ...})
    marker.write_text(change)
    with pytest.raises(StorageError) as refusal:
        get(f"{web.url}/a.tar.gz", into, extract=True)
    first, second = str(refusal.value).splitlines()
    assert first.startswith(f"{marker} is damaged: ")
    assert what in first
    assert second.endswith("Restore or remove it.")
    marker.unlink()
    assert get(f"{web.url}/a.tar.gz", into, extract=True) == path


def test_events_have_the_phases_and_are_few(web, into, monkeypatch):
    monkeypatch.setattr(fetch, "TICK_EVERY_S", 60.0)  # the first event follows the first answer
    events = []
    get(f"{web.url}/a.tar.gz", into, extract=True, on_event=events.append)
    assert [event["phase"] for event in events] == ["download", "extract", "ready"]
    assert all(event["event"] == "stage" and event["name"] == "d" for event in events)
    assert events[-1]["bytes"] == 5001
    assert [event["seconds"] for event in events] == sorted(event["seconds"] for event in events)
    assert events[0]["total_bytes"] == len(web.files["/a.tar.gz"])
    json.dumps(events)


def test_a_try_that_fails_is_an_event_with_the_reason(web, into):
    web.answers = [Answer(status=503)]
    events = []
    get(f"{web.url}/f", into, on_event=events.append)
    (failed,) = (event for event in events if "problem" in event)
    assert line_of({**failed, "kind": "stage"}) == "data d: HTTP 503 Service Unavailable; trying again"


def test_a_stop_keeps_the_received_bytes_and_the_next_start_continues(web, into, monkeypatch):
    monkeypatch.setattr(staging, "REPORT_EVERY_S", 0.0)
    web.answers = [Answer(hold_after=50_000)]
    asked = []
    with pytest.raises(RunStopped, match="d was being staged") as stopped:
        get(f"{web.url}/f", into, should_stop=lambda: asked.append(1) or len(asked) > 10)
    assert stopped.value.exit_code == 130
    assert get(f"{web.url}/f", into).read_bytes() == BODY
    first, second = web.ranges
    assert first is None
    assert 0 < int(second.removeprefix("bytes=").removesuffix("-")) <= 50_000
    assert unfinished(into) == []


def test_a_stop_takes_effect_while_waiting_for_another(web, into):
    web.accepts_ranges = False
    web.answers = [Answer(hold_after=1000)]
    other = child(f"{web.url}/f", into)
    assert "download" in other.stdout.readline()
    events = []
    with pytest.raises(RunStopped):
        get(f"{web.url}/f", into, on_event=events.append, should_stop=lambda: True)
    assert [event["phase"] for event in events] == ["wait"]
    web.go_on.set()
    assert path_from(other).read_bytes() == BODY


# -------------------------------------------------------------------------------------- many processes


@pytest.mark.slow
def test_eight_processes_download_once(web, into):
    web.answers = [Answer(hold_after=100)]
    children = [child(f"{web.url}/a.tar.gz", into, extract=True) for _ in range(8)]
    phases = sorted(json.loads(process.stdout.readline())["phase"] for process in children)
    assert phases == ["download"] + ["wait"] * 7  # all are at it before the download ends
    web.go_on.set()
    paths = {path_from(process) for process in children}
    assert len(paths) == 1
    assert files_under(paths.pop()) == {"a/x": b"1" * 5000, "y": b"2"}
    assert web.ranges == [None]
    assert unfinished(into) == []


def test_a_holder_that_lost_between_its_last_check_and_the_rename_replaces_nothing(web, into, monkeypatch):
    """The worst moment: it passed `check`, slept, and everything was published meanwhile."""
    winner = into.parent / "winner"
    won = get(f"{web.url}/f", winner)
    real, calls = staging._publish, []

    def sleep_first(entry, whole):
        shutil.copytree(won.parent.parent, entry.folder)
        calls.append((entry.folder / "READY.json").stat().st_ino)
        real(entry, whole)

    monkeypatch.setattr(staging, "_publish", sleep_first)
    path = get(f"{web.url}/f", into)
    assert (path.parent.parent / "READY.json").stat().st_ino == calls[0]
    assert path.read_bytes() == BODY
    assert unfinished(into) == []


@pytest.mark.slow
@pytest.mark.parametrize(("extract", "stride"), [(False, 3), (True, 1)])
def test_a_kill_at_any_point_leaves_all_or_nothing(tmp_path, extract, stride):
    source, into = tmp_path / "source.tar.gz", tmp_path / "data"
    source.write_bytes(archive_of({"a/x": b"1" * 5000, "y": b"2"}))
    entry = StagedData.of(Location(str(source)), None, extract, into)
    kills = seen_ready = 0

    def whole():
        path = get(source, into, extract=extract)
        if extract:
            return files_under(path) == {"a/x": b"1" * 5000, "y": b"2"}
        return path.read_bytes() == source.read_bytes()

    def prepare():
        shutil.rmtree(into, ignore_errors=True)

    for _ in killed_at_every_point(prepare, lambda: get(source, into, extract=extract), stride=stride):
        kills += 1
        was_ready = entry.ready() is not None
        seen_ready += was_ready
        assert whole()  # by the next start, at once: the holder is dead
        if not was_ready:
            assert unfinished(into) == []
    assert kills * stride > 25
    assert 0 < seen_ready < kills
    assert whole()
