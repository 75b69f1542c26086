"""Checkpoints: whole or not there, verified to the last bit, pruned without risk."""

import errno
import hashlib
import json
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertrain.checkpoints import read as checkpoint
from clustertrain.checkpoints.manifest import (
    MANIFEST,
    CheckpointDamaged,
    CheckpointFolder,
    CheckpointName,
    UnknownFormat,
    names,
)
from clustertrain.checkpoints.retention import Retention
from clustertrain.checkpoints.write import StaleWriter, Writer
from clustertrain.errors import StorageError
from clustertrain.storage import open_store, posix
from clustertrain.storage.posix_tree import WrittenFile, remove_tree
from clustertrain.training.ranks.host import SaveProgress
from support.kills import killed_at_every_point
from support.sample_checkpoints import shelf_at

FILES = {"model.pt": b"weights" * 40, "training.pt": b"optimizer" * 10}


def progress(step, **changes):
    made = SaveProgress(step, epoch=1, samples_seen=8 * step, world_size=2, metrics={}, reason="every")
    return replace(made, **changes)


def writer(folder, attempt=1, restart=0, *, still_newest=lambda: True, **retention):
    return Writer(
        shelf_at(folder), attempt, restart, "0" * 64, {"torch": "2"}, Retention(**retention), still_newest
    )


def verify(folder):
    return checkpoint.verify(shelf_at(folder.parent), folder.name)


def read_manifest(folder):
    return checkpoint.read_manifest(shelf_at(folder.parent), folder.name)


def newest_verified(folder, on_damaged):
    return checkpoint.newest_verified(shelf_at(folder), on_damaged, folder / "unused")


def commit(writer, step, files=FILES, **changes):
    contents = {name: lambda file, data=data: file.write(data) for name, data in files.items()}
    return writer.commit(contents, progress(step, **changes))


def visible(folder):
    return [str(name) for name in names(shelf_at(folder))]


def steps_in(folder):
    return [name.step for name in names(shelf_at(folder))]


def never(name, error):
    raise AssertionError(f"{name} should verify: {error}")


def test_a_second_save_of_a_step_says_which_metrics_it_does_not_keep(tmp_path):
    one = writer(tmp_path)
    commit(one, 3, metrics={"loss": 0.5, "nan": math.nan})
    assert commit(one, 3, metrics={"nan": math.nan}).left is None  # a stop, with the same state
    again = commit(one, 3, metrics={"loss": 0.5, "accuracy": 0.9})
    assert again.size_bytes == 0
    assert "step 3 was not written: 00000003-1.0 exists, without this accuracy.\n" in again.left


def test_a_copy_from_s3_is_on_the_disk_before_it_counts(moto_s3, aws_environment, tmp_path, monkeypatch):
    """Otherwise a node that loses its power may keep the marker, and files with a part of their bytes."""
    shelf = CheckpointFolder(open_store(moto_s3.location("runs")), "checkpoints")
    name, *_ = commit(replace(writer(tmp_path), shelf=shelf), 7)
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    checkpoint.fetch_checkpoint(shelf, name, tmp_path / "copy")
    assert sorted(synced) == sorted(FILES)


def test_names_order_by_step_then_by_writer():
    texts = ["00000009-3.0", "00000010-1.0", "00000010-1.2", "00000010-2.0", "123456789-1.0"]
    parsed = [CheckpointName.parse(text) for text in texts]
    assert sorted(parsed, reverse=True) == parsed[::-1]
    assert [str(name) for name in parsed] == texts


@pytest.mark.parametrize(
    "text",
    ["", "7-1.0", "00000007-1", ".00000007-1.0.ab.tmp", "000000007-1.0", "00000007-01.0", "00000007-1.0\n"],
)
def test_another_text_is_no_name_of_a_checkpoint(text):
    assert CheckpointName.parse(text) is None


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    commit(writer(folder), 1)
    commit(writer(folder), 2, metrics={"loss": 0.25})
    return folder


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_bit_flip_and_any_cut_in_any_file_is_found(two_checkpoints, data):
    name = data.draw(st.sampled_from([*FILES, MANIFEST]))
    path = two_checkpoints / "00000002-1.0" / name
    good = path.read_bytes()
    place = data.draw(st.integers(0, len(good) - 1))
    if data.draw(st.booleans(), label="cut"):
        bad = good[:place]
    else:
        bad = bytearray(good)
        bad[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        path.write_bytes(bad)
        with pytest.raises(CheckpointDamaged) as damage:
            verify(path.parent)
        assert str(path) in str(damage.value)
        fell_back = []
        found = newest_verified(two_checkpoints, lambda name, error: fell_back.append(str(name)))
        assert str(found.name) == "00000001-1.0"
        assert fell_back == ["00000002-1.0"]
    finally:
        path.write_bytes(good)


def copied_as_step_9(folder):
    shutil.copytree(folder, folder.with_name("00000009-1.0"))
    return folder.with_name("00000009-1.0")


def leading_outside(folder):
    evil = replace(read_manifest(folder), files={"../secret": WrittenFile(1, "0" * 64)})
    (folder / MANIFEST).write_bytes(evil.to_bytes())


VERSIONS = ["2", "1", '1, "x": 1']
NO_MANIFESTS = ["", "[]", "null", "{}", "ÿ", *(f'{{"format_version": {each}}}' for each in VERSIONS)]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        *[(lambda folder, name=name: (folder / name).unlink(), name) for name in (*FILES, MANIFEST)],
        (
            lambda folder: (folder / "model.pt").write_bytes(b"short"),
            r"model\.pt has 5 bytes, but the manifest lists 280",
        ),
        (
            lambda folder: (folder / "model.pt").write_bytes(b"x" * 280),
            r"model.pt has sha256 \w{64}, but the manifest lists \w{64}",
        ),
        (copied_as_step_9, r"is of 00000001-1\.0, not of its folder"),
        (leading_outside, "not a plain name"),
        *[
            (lambda folder, text=text: (folder / MANIFEST).write_text(text, "latin-1"), MANIFEST)
            for text in NO_MANIFESTS
        ],
    ],
)
def test_damage_is_named(tmp_path, spoil, message):
    commit(writer(tmp_path), 1)
    folder = tmp_path / "00000001-1.0"
    with pytest.raises(CheckpointDamaged, match=message):
        verify(copied if isinstance(copied := spoil(folder), Path) else folder)


def test_a_whole_manifest_of_another_version_is_refused_and_not_fallen_back_from(tmp_path):
    """A newer clustertrain trained on: to resume from the one before would hide that."""
    one = writer(tmp_path)
    commit(one, 1)
    commit(one, 2)
    path = tmp_path / "00000002-1.0" / MANIFEST
    value = json.loads(path.read_text())
    del value["manifest_sha256"]
    value |= {"format_version": 2, "versions": {"clustertrain": "9.0.0"}, "shards": []}
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**value, "manifest_sha256": digest}))
    with pytest.raises(UnknownFormat) as refusal:
        newest_verified(tmp_path, never)
    assert f"{path} has format version 2" in str(refusal.value)
    assert "reads version 1.\nInstall clustertrain 9.0.0, or newer" in str(refusal.value)
    assert refusal.value.exit_code == 4
    fell_back = []
    path.write_text(json.dumps({**value, "manifest_sha256": "0" * 64}))  # this one is only damaged
    newest_verified(tmp_path, lambda name, error: fell_back.append(name.step))
    assert fell_back == [2]


def test_a_start_is_refused_if_no_checkpoint_verifies(tmp_path):
    for step in (1, 2):
        commit(writer(tmp_path), step)
        (tmp_path / f"0000000{step}-1.0" / "model.pt").unlink()
    fell_back = []
    with pytest.raises(StorageError, match=r"None of the 2 checkpoints in .* verifies.\n.*--fresh"):
        newest_verified(tmp_path, lambda name, error: fell_back.append(name.step))
    assert fell_back == [2, 1]


# --------------------------------------------------------------------------------------------- writing


@pytest.mark.slow
def test_a_kill_at_any_point_leaves_the_whole_checkpoint_or_none(tmp_path):
    folder = tmp_path / "checkpoints"

    def prepare():
        shutil.rmtree(folder, ignore_errors=True)
        for step in (1, 2):
            commit(writer(folder, keep_last=2), step)

    seen = set()
    kills = 0
    for _ in killed_at_every_point(prepare, lambda: commit(writer(folder, attempt=2, keep_last=2), 3)):
        kills += 1
        for name in names(shelf_at(folder)):
            verify(folder / str(name))
        steps = tuple(steps_in(folder))
        seen.add(steps)
        collected = writer(folder, attempt=3).collected
        assert all(name.startswith(".") for name in collected)
        assert sorted(p.name for p in folder.iterdir()) == visible(folder)
    assert kills > 10
    assert seen == {(1, 2), (1, 2, 3), (2, 3)}
    assert steps_in(folder) == [2, 3]


def test_a_fenced_writer_commits_nothing_and_removes_nothing(tmp_path):
    for step in (1, 2, 3):
        commit(writer(tmp_path), step)
    newest = {"attempt": 1}
    stale = writer(tmp_path, still_newest=lambda: newest["attempt"] == 1, keep_last=1)

    def taken_over_meanwhile(file):
        newest["attempt"] = 2
        file.write(b"x")

    with pytest.raises(StaleWriter, match=r"attempt 1, restart 0 is no longer the newest.*\n.*this one ends"):
        stale.commit({"model.pt": taken_over_meanwhile}, progress(4))
    assert visible(tmp_path) == ["00000001-1.0", "00000002-1.0", "00000003-1.0"]
    assert len(list(tmp_path.iterdir())) == 3


def test_writers_of_two_attempts_never_share_a_folder(tmp_path):
    commit(writer(tmp_path, 1), 5, {"model.pt": b"old"})
    commit(writer(tmp_path, 2), 5, {"model.pt": b"new"})
    commit(writer(tmp_path, 2, 1), 5, {"model.pt": b"newer"})
    assert visible(tmp_path) == ["00000005-1.0", "00000005-2.0", "00000005-2.1"]
    assert (newest_verified(tmp_path, never).path / "model.pt").read_bytes() == b"newer"


def test_a_second_save_of_one_step_is_the_first(tmp_path):
    one = writer(tmp_path)
    name, *_ = commit(one, 5, {"model.pt": b"first"})
    assert commit(one, 5, {"model.pt": b"second"}) == (name, 0, None)
    assert (tmp_path / str(name) / "model.pt").read_bytes() == b"first"


# ------------------------------------------------------------------------------------------- retention


NOT_NUMBERS = [float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize(
    ("mode", "values", "kept"),
    [
        (None, [0.5] * 5, [4, 5]),
        ("max", [0.5, 0.9, 0.1, 0.5, 0.5], [2, 5]),
        ("min", [0.5, 0.9, 0.1, 0.5, 0.5], [3, 5]),
        *[("min", [odd, 0.5, odd, 0.7, odd], [2, 5]) for odd in NOT_NUMBERS],
        *[("max", [odd, 0.5, odd, 0.3, odd], [2, 5]) for odd in NOT_NUMBERS],
    ],
)
def test_the_newest_and_the_best_stay(tmp_path, mode, values, kept):
    retention = {"best_metric": "m", "best_mode": mode, "keep_last": 1} if mode else {"keep_last": 2}
    one = writer(tmp_path, **retention)
    for step, value in enumerate(values, 1):
        commit(one, step, metrics={"m": value})
    assert steps_in(tmp_path) == kept


def test_the_checkpoint_just_committed_is_kept_although_another_is_ahead(tmp_path):
    """After a fallback, a damaged checkpoint of a later step is still there."""
    for step in (8, 9):
        commit(writer(tmp_path, 1), step)
    commit(writer(tmp_path, 2, keep_last=1), 5)
    assert steps_in(tmp_path) == [5, 9]


def test_a_checkpoint_that_another_process_removed_is_no_failure(tmp_path, monkeypatch):
    one = writer(tmp_path, keep_last=1)
    commit(one, 1)

    def removed_twice(folder):
        remove_tree(folder)
        remove_tree(folder)

    monkeypatch.setattr(posix, "remove_tree", removed_twice)
    commit(one, 2)
    assert steps_in(tmp_path) == [2]


def test_a_checkpoint_that_cannot_be_removed_is_reported_and_the_others_are_removed(tmp_path, monkeypatch):
    for step in (1, 2):
        commit(writer(tmp_path), step)

    def refuse(folder):
        if folder.name == "00000001-1.0":
            raise PermissionError(13, "Permission denied", str(folder))
        remove_tree(folder)

    monkeypatch.setattr(posix, "remove_tree", refuse)
    left = commit(writer(tmp_path, keep_last=1), 3).left
    assert left is not None
    assert re.search(r"00000003-1.0 is committed, but .*00000001-1.0 cannot be removed", left)
    assert newest_verified(tmp_path, never).manifest.step == 3
    assert steps_in(tmp_path) == [1, 3]


def test_the_best_is_kept_while_nfs_does_not_read_it(tmp_path, monkeypatch):
    retention = {"best_metric": "m", "best_mode": "max", "keep_last": 1}
    for step, value in [(1, 0.9), (2, 0.5)]:
        commit(writer(tmp_path, **retention), step, metrics={"m": value})

    def fail(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(posix, "read_file", fail)
        commit(writer(tmp_path, **retention), 3, metrics={"m": 0.5})
    commit(writer(tmp_path, **retention), 4, metrics={"m": 0.5})
    assert steps_in(tmp_path) == [1, 4]


def test_a_checkpoint_that_a_process_has_open_on_nfs_is_removed_as_far_as_possible(tmp_path, monkeypatch):
    """NFS gives such a file another name until it is closed, so its folder does not become empty."""
    one = writer(tmp_path, keep_last=1)
    commit(one, 1)

    def not_empty(path, **options):
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", not_empty)
        name, size_bytes, left = commit(one, 2)
    assert (name.step, size_bytes > 0, left) == (2, True, None)
    assert visible(tmp_path) == ["00000002-1.0"]
    assert len(writer(tmp_path).collected) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["00000002-1.0"]
