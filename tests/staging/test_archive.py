"""Unpacking: what goes in comes out, and nothing else does."""

import gzip
import io
import stat
import subprocess
import tarfile
import tracemalloc
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertrain.errors import DataError, StorageError
from clustertrain.staging import archive as archive_module
from clustertrain.staging.archive import extract

TAR_MODES = {"tar": "w", "tar.gz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}
KINDS = [*TAR_MODES, "zip"]


def make_tar(path, members, mode="w", format=tarfile.PAX_FORMAT):
    """`members`: (name, bytes), or (TarInfo, bytes)."""
    with tarfile.open(path, mode, format=format) as archive:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            if not isinstance(name, tarfile.TarInfo):
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def make_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def make(kind, path, members):
    return make_zip(path, members) if kind == "zip" else make_tar(path, members, TAR_MODES[kind])


def files_under(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def typed(name, kind, linkname=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, linkname
    return info


def refusal_of(path, tmp_path):
    """The text of the refusal; it names the archive and has two lines, and nothing is outside the folder."""
    before = set(tmp_path.rglob("*"))
    with pytest.raises(DataError) as refusal:
        extract(path, tmp_path / "out")
    new = set(tmp_path.rglob("*")) - before
    assert all(p.is_relative_to(tmp_path / "out") for p in new)
    assert not any(p.is_symlink() for p in new)
    assert path.name in str(refusal.value)
    assert str(refusal.value).count("\n") == 1
    return str(refusal.value)


def traced_refusal_of(path, tmp_path):
    tracemalloc.start()
    try:
        text = refusal_of(path, tmp_path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 50 << 20
    return text


names = st.text(
    st.characters(categories=["L", "N"], include_characters="._- "), min_size=1, max_size=12
).filter(lambda name: name not in (".", "..") and name.isprintable() and len(name.encode()) < 200)
trees = st.recursive(
    st.binary(max_size=3000), lambda inner: st.dictionaries(names, inner, max_size=4), max_leaves=12
)


def flat(tree, prefix=""):
    if isinstance(tree, bytes):
        return [(prefix, tree)]
    return [
        item for name, inner in tree.items() for item in flat(inner, f"{prefix}/{name}" if prefix else name)
    ]


@settings(max_examples=40, deadline=None)
@given(tree=st.dictionaries(names, trees, max_size=4), kind=st.sampled_from(KINDS))
def test_every_packed_file_is_unpacked(tree, kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trip")
    members = flat(tree)
    path = make(kind, folder / "a", members)
    ticks = []
    written = extract(path, folder / "out", tick=lambda done, total: ticks.append((done, total)))
    assert files_under(folder / "out") == dict(members)
    assert written == sum(len(data) for _, data in members)
    assert all(0 <= done <= total == path.stat().st_size for done, total in ticks)


def test_unpacked_files_have_our_modes(tmp_path):
    program, secret = tarfile.TarInfo("d/run.sh"), tarfile.TarInfo("secret")
    program.mode, secret.mode = 0o6777, 0o600
    make_tar(tmp_path / "a.tar", [(program, b""), (secret, b""), (typed("e", tarfile.DIRTYPE), b"")])
    extract(tmp_path / "a.tar", tmp_path / "out")
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "out").rglob("*")}
    assert modes == {"d": 0o755, "run.sh": 0o755, "secret": 0o644, "e": 0o755}


def test_files_stay_in_the_group_of_a_folder_that_sets_it(tmp_path):
    tmp_path.chmod(0o2755)
    extract(make_tar(tmp_path / "a.tar", [("d/e/x", b"1")]), tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").rglob("*") if p.stat().st_mode & stat.S_ISGID} == {"d", "e"}


def test_common_names_are_unpacked(tmp_path):
    members = [(typed("./", tarfile.DIRTYPE), b""), ("./a//b", b"1"), (typed("a/", tarfile.DIRTYPE), b"")]
    extract(make_tar(tmp_path / "a.tar", members), tmp_path / "out")
    assert files_under(tmp_path / "out") == {"a/b": b"1"}


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_are_unpacked(tmp_path, format):
    name = "/".join(["n" * 200] * 5)
    extract(make_tar(tmp_path / "a", [(name, b"1")], format=format), tmp_path / "out")
    assert files_under(tmp_path / "out") == {name: b"1"}


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "a/..", "/etc/evil", "//evil"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path, kind, name):
    text = refusal_of(make(kind, tmp_path / "a.x", [("fine", b"1"), (name, b"evil")]), tmp_path)
    assert f"{name!r}: its path is absolute, or contains '..'" in text
    assert "Pack it again" in text


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_a_tar_member_of_another_kind_is_refused(tmp_path, kind):
    (tmp_path / "secret").write_text("secret")
    members = [(typed("door", kind, "../secret"), b""), ("door", b"overwritten")]
    text = refusal_of(make_tar(tmp_path / "a.tar", members), tmp_path)
    assert "'door': it is neither a file nor a folder" in text
    assert (tmp_path / "secret").read_text() == "secret"


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_a_zip_member_of_another_kind_is_refused(tmp_path, mode):
    info = zipfile.ZipInfo("door")
    info.external_attr = (mode | 0o777) << 16
    text = refusal_of(make_zip(tmp_path / "a.zip", [(info, b"/etc/passwd")]), tmp_path)
    assert "'door': it is neither a file nor a folder" in text


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_that_would_be_unpacked_in_memory_is_refused(tmp_path, method):
    """These 128 MiB are less than one read of the archive."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        archive.writestr("a", bytes(128 << 20))
    assert f"method {method} of zip" in traced_refusal_of(tmp_path / "a.zip", tmp_path)


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize(
    "members", [[("a", b"1"), ("a", b"2")], [("a", b"1"), ("a/b", b"2")], [("a/b", b""), ("a", b"")]]
)
@pytest.mark.filterwarnings("ignore:Duplicate name")  # the zip writer warns of what is made here on purpose
def test_nothing_is_overwritten(tmp_path, kind, members):
    refusal_of(make(kind, tmp_path / "a.x", members), tmp_path)
    assert files_under(tmp_path / "out") == dict(members[:1])


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_members_are_refused(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(archive_module, "MOST_MEMBERS", 1)
    path = make(kind, tmp_path / "a.x", [("a", b"x" * 600), ("b", b"x" * 600)])
    assert "'b': it has more than 1 members" in refusal_of(path, tmp_path)
    assert files_under(tmp_path / "out") == {"a": b"x" * 600}


@pytest.mark.parametrize("kind", ["tar.gz", "tar.bz2", "tar.xz", "zip"])
def test_a_bomb_is_refused_by_its_ratio(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(archive_module, "RATIO_FROM_BYTES", 1 << 20)
    path = make(kind, tmp_path / "a.x", [(str(n), bytes(1 << 19)) for n in range(8)])
    assert "the limit is 200 : 1" in refusal_of(path, tmp_path)
    assert sum(map(len, files_under(tmp_path / "out").values())) <= 1 << 20


def test_a_size_that_no_disk_has_is_refused_before_a_byte_is_written(tmp_path):
    info = tarfile.TarInfo("a")
    info.size = 1 << 45
    path = tmp_path / "a.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(StorageError, match=f"takes at least {1 << 45} bytes, .* were free"):
        extract(path, tmp_path / "out")
    assert files_under(tmp_path / "out") == {}


def test_a_header_of_gigabytes_is_not_read_into_memory(tmp_path):
    info = typed("././@LongLink", tarfile.GNUTYPE_LONGNAME)
    info.size = 4 << 30
    with gzip.open(tmp_path / "a.tgz", "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
    assert "are longer than 1048576 bytes" in traced_refusal_of(tmp_path / "a.tgz", tmp_path)


def test_a_sparse_file_is_unpacked(tmp_path):
    with (tmp_path / "holes").open("wb") as file:
        for number in range(60):
            file.seek(number * 65536)
            file.write(b"x")
    subprocess.run(
        ["tar", "--sparse", "--format=gnu", "-C", tmp_path, "-cf", tmp_path / "a.tar", "holes"], check=True
    )
    extract(tmp_path / "a.tar", tmp_path / "out")
    assert (tmp_path / "out/holes").read_bytes() == (tmp_path / "holes").read_bytes()


@settings(max_examples=60, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_a_cut_archive_is_never_taken_for_a_whole_one(data, kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    members = [("a", b"1" * 1000), ("b/c", bytes(range(256)) * 5)]
    whole = make(kind, folder / "a", members).read_bytes()
    # tar pads its end mark to 10 KiB: what is behind the first block of zeros is no loss
    needed = len(whole) if kind != "tar" else 512 * (1 + 2 + 1 + 3) + 512
    cut = data.draw(st.integers(0, needed - 1))
    (folder / "cut").write_bytes(whole[:cut])
    with pytest.raises(DataError):
        extract(folder / "cut", folder / "out")


def damaged_header(folder):
    data = bytearray(make_tar(folder / "1", [("a", b"1"), ("b", b"2")]).read_bytes())
    data[1024] ^= 1  # the second header
    return bytes(data)


def second_archive(folder):
    one, two = make_tar(folder / "1", [("a", b"1")]), make_tar(folder / "2", [("b", b"2")])
    return one.read_bytes() + two.read_bytes()


def wrong_checksum(folder):
    with zipfile.ZipFile(folder / "1", "w") as archive:
        archive.writestr("a", b"0123456789")
    return (folder / "1").read_bytes().replace(b"0123456789", b"0123456780")


@pytest.mark.parametrize(
    ("make_data", "said"),
    [
        (damaged_header, "a header is damaged, or cut"),
        (lambda folder: gzip.compress(damaged_header(folder)), "a header is damaged, or cut"),
        (second_archive, "followed by data that is not a member"),
        (wrong_checksum, "CRC"),
    ],
    ids=["header", "header-gz", "second-archive", "zip-checksum"],
)
def test_a_damaged_archive_is_never_taken_for_a_whole_one(tmp_path, make_data, said):
    (tmp_path / "damaged").write_bytes(make_data(tmp_path))
    assert said in refusal_of(tmp_path / "damaged", tmp_path)


def test_an_error_of_the_tick_ends_the_unpacking(tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(make_tar(tmp_path / "a.tar", [("a", b"1"), ("b", b"2")]), tmp_path / "out", tick=stop)
    assert "b" not in files_under(tmp_path / "out")
