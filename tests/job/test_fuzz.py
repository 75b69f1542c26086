"""What is read from a disk or a network that others can write: any bytes end in a result or an error of ours.

Short by default. CLUSTERTRAIN_FUZZ_EXAMPLES=100000 looks for longer; what it finds goes into tests/corpus.
The name of a file there says what is wrong with it; with ok_ it begins if nothing is, with either_ if some
versions of Python read it.
"""

import bz2
import gzip
import hashlib
import json
import lzma
import os
import random
import stat
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clustertrain.checkpoints.manifest import (
    MANIFEST,
    CheckpointDamaged,
    Manifest,
    UnknownFormat,
    read_manifest,
)
from clustertrain.checkpoints.read import verify
from clustertrain.errors import DataError, StorageError
from clustertrain.staging import archive as archive_module
from clustertrain.staging.archive import extract
from clustertrain.staging.stage import stage
from clustertrain.storage.location import Location
from support.sample_checkpoints import shelf_at

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("CLUSTERTRAIN_FUZZ_EXAMPLES", "150"))
CORPUS = Path(__file__).parents[1] / "corpus"
MANIFESTS = {path.name: path.read_bytes() for path in sorted((CORPUS / "manifest").iterdir())}
STEP_1 = {key: value for key, value in json.loads(MANIFESTS["ok"]).items() if key != "manifest_sha256"}
ARCHIVES = {path.name: path.read_bytes() for path in sorted((CORPUS / "archive").iterdir())}
LIMITS = {"MOST_MEMBERS": 100, "RATIO_FROM_BYTES": 1 << 20}


def fuzz(examples=EXAMPLES):
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    # The short run is the same every time, so that it does not fail because of an unrelated change.
    same = "CLUSTERTRAIN_FUZZ_EXAMPLES" not in os.environ
    return settings(max_examples=examples, deadline=None, suppress_health_check=checks, derandomize=same)


@st.composite
def mutated(draw, seeds):
    """The bytes of a seed after a few cuts, flips, repetitions and insertions."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.sampled_from([1, 2, 8, 12, 100, 512]))
        piece = data[at : at + length]
        match draw(st.sampled_from(["flip", "cut", "remove", "repeat", "insert", "overwrite"])):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:]
            case "remove":
                del data[at : at + length]
            case "repeat":
                data[at:at] = piece * draw(st.integers(1, 4))
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=16))
            case "overwrite":
                new = draw(st.binary(min_size=1, max_size=16))
                data[at : at + len(new)] = new
    return bytes(data)


# ------------------------------------------------------------------------------------------- manifests


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A checkpoint of step 1 whose manifest is still to be written."""
    folder = tmp_path_factory.mktemp("shelf")
    (folder / "00000001-1.0").mkdir()
    (folder / "00000001-1.0" / "model.pt").write_bytes(b"weights")
    return shelf_at(folder)


def is_whole(shelf, data):
    """Whether a checkpoint with this manifest verifies; the only other ends are CheckpointDamaged, and for a
    manifest that is itself whole UnknownFormat."""
    path = Path(shelf.uri("00000001-1.0", MANIFEST))
    path.write_bytes(data)
    try:
        manifest = read_manifest(shelf, "00000001-1.0")
        assert isinstance(manifest, Manifest)
        assert verify(shelf, "00000001-1.0") == manifest
    except (CheckpointDamaged, UnknownFormat) as error:
        assert str(path.parent) in str(error)
        assert isinstance(error, CheckpointDamaged) or json.loads(data).get("format_version") != 1
        return False
    return True


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_of_the_corpus(shelf, name):
    assert is_whole(shelf, MANIFESTS[name]) == name.startswith("ok")


@fuzz()
@given(data=st.binary(max_size=400) | mutated(list(MANIFESTS.values())))
def test_any_bytes_as_a_manifest(shelf, data):
    assert is_whole(shelf, data) == (data == MANIFESTS["ok"])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@fuzz()
@given(key=st.sampled_from(sorted(STEP_1)), value=values)
def test_a_manifest_of_other_values_that_was_signed_again(shelf, key, value):
    """Any content that a faulty program could have written: a reader raises only the expected errors."""
    digest = hashlib.sha256(json.dumps({**STEP_1, key: value}, sort_keys=True).encode()).hexdigest()
    if is_whole(shelf, json.dumps({**STEP_1, key: value, "manifest_sha256": digest}).encode()):
        manifest = read_manifest(shelf, "00000001-1.0")
        for field, good in STEP_1.items():
            assert type(getattr(manifest, field)) is type(good), field


# -------------------------------------------------------------------------------------------- archives


def is_unpacked(data):
    """Whether an archive is unpacked; the only other ends are DataError and StorageError.

    Whatever happens, nothing is outside its folder, nothing in it is anything but a file or a folder, and
    nothing is over the limits.
    """
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        archive, into = root / "archive", root / "outer" / "out"
        archive.write_bytes(data)
        into.parent.mkdir()
        try:
            with mock.patch.multiple(archive_module, **LIMITS):
                written_bytes = extract(archive, into)
        except (DataError, StorageError) as error:
            assert str(error).count("\n") in (1, 2)
            written_bytes = None
        assert sorted(p.name for p in root.iterdir()) == ["archive", "outer"]
        assert [p.name for p in into.parent.iterdir()] == ["out"]
        found = [p.lstat() for p in into.rglob("*")]
        files = [s for s in found if stat.S_ISREG(s.st_mode)]
        assert all(stat.S_ISREG(s.st_mode) or stat.S_ISDIR(s.st_mode) for s in found)
        assert {stat.S_IMODE(s.st_mode) for s in found} <= {0o644, 0o755}
        assert {s.st_nlink for s in files} <= {1}
        assert len(files) <= LIMITS["MOST_MEMBERS"]
        most_bytes = max(LIMITS["RATIO_FROM_BYTES"], archive_module.MOST_RATIO * len(data))
        assert sum(s.st_size for s in files) <= most_bytes
        assert written_bytes in (None, sum(s.st_size for s in files))
        return written_bytes is not None


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_of_the_corpus(name):
    unpacked = is_unpacked(ARCHIVES[name])
    assert unpacked == name.startswith("ok") or name.startswith("either_")


@fuzz()
@given(data=st.binary(max_size=1500) | mutated(list(ARCHIVES.values())))
def test_any_bytes_as_an_archive(data):
    is_unpacked(data)


def with_checksums(data):
    """A tar whose headers have good checksums again, so that a change in them is not the end of it."""
    data = bytearray(data)
    for at in range(0, len(data) - 511, 512):
        if data[at + 257 : at + 262] == b"ustar":
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data)


PACKED = {"tar": bytes, "gz": lambda data: gzip.compress(data, 1), "bz2": bz2.compress, "xz": lzma.compress}
TARS = [data for name, data in ARCHIVES.items() if name.endswith(".tar")]


@fuzz()
@given(data=mutated(TARS).map(with_checksums), kind=st.sampled_from(list(PACKED)))
def test_tars_with_any_content_and_right_checksums(data, kind):
    is_unpacked(PACKED[kind](data))


# ------------------------------------------------------------------- what staging notes for the next process

CONTENT = random.Random(0).randbytes(3 << 20)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "content"
    path.write_bytes(CONTENT)
    return Location(str(path))


def staged(source, into, **options):
    return stage("content", source, sha256=None, extract=False, into=into, **options)


markers = (
    st.binary(max_size=60)
    | st.sampled_from(list(MANIFESTS.values()))
    | values.map(lambda value: json.dumps(value).encode())
    | values.map(lambda value: json.dumps({"bytes": value}).encode())
)


@fuzz(max(20, EXAMPLES // 6))
@given(data=markers)
def test_a_marker_of_any_bytes(source, tmp_path_factory, data):
    """The data set is found, fetched again, or the error names the marker."""
    into = tmp_path_factory.getbasetemp() / "marked"
    marker = staged(source, into).parent.parent / "READY.json"
    good = marker.read_bytes()
    marker.write_bytes(data)
    try:
        assert staged(source, into).read_bytes() == CONTENT
    except StorageError as error:
        assert str(marker) in str(error)
    finally:
        marker.write_bytes(good)
