"""Writes tests/corpus/{manifest,archive}/: small nasty files, each named after what is wrong with it.

Run it after adding one: python tests/corpus/make_corpus.py. A name that begins with ok_ is of a file that is
fine, one with either_ of a file that some versions of Python read and others refuse; every other one must be
refused. test_fuzz.py replays them all and begins its mutations with them.
"""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import stat
import struct
import tarfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parent
STEP_1 = {
    "attempt": 1,
    "epoch": 0,
    "files": {"model.pt": {"sha256": hashlib.sha256(b"weights").hexdigest(), "size_bytes": 7}},
    "format_version": 1,
    "job_sha256": "0" * 64,
    "metrics": {"loss": 0.5},
    "reason": "steps",
    "restart": 0,
    "samples_seen": 8,
    "step": 1,
    "versions": {"torch": "2"},
    "world_size": 2,
    "written_at": 1.5,
}

# ------------------------------------------------------------------------------------------- manifests


def signed(**changes):
    """A manifest with any content and the right checksum of itself."""
    fields = {**STEP_1, **changes}
    fields = {key: value for key, value in fields.items() if value is not ...}
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    return json.dumps({**fields, "manifest_sha256": digest}, indent=1, sort_keys=True).encode() + b"\n"


def file_named(name):
    return {name: STEP_1["files"]["model.pt"]}


def nested(depth):
    value = 0
    for _ in range(depth):
        value = [value]
    return value


def manifests():
    good = signed()
    entry = STEP_1["files"]["model.pt"]
    return {
        "ok": good,
        "empty": b"",
        "truncated": good[: len(good) // 2],
        "not_utf8": good.replace(b"steps", b"st\xffps"),
        "utf16": good.decode().encode("utf-16"),
        "byte_order_mark": b"\xef\xbb\xbf" + good,
        "nul": good.replace(b"steps", b"st\0ps"),
        "null": b"null",
        "list": b"[1]",
        "number": b"1",
        "nan": b"NaN",
        "deep_list": b"[" * 5000,
        "deep_object": b'{"a":' * 5000 + b"1" + b"}" * 5000,
        "deep_and_signed": signed(metrics=nested(400)),
        "deep_inside": good.replace(b'"loss": 0.5', b'"loss": ' + b"[" * 5000 + b"]" * 5000),
        "deep_of_another_version": b'{"format_version": 2, "a": ' + b"[" * 940 + b"]" * 940 + b"}",
        "huge_integer": good.replace(b'"step": 1', b'"step": ' + b"9" * 5000),
        "format_version_2": signed(format_version=2),
        "format_version_text": signed(format_version="1"),
        "format_version_true": signed(format_version=True),
        "format_version_1.0": signed(format_version=1.0),
        "format_version_missing": signed(format_version=...),
        "field_missing": signed(samples_seen=...),
        "field_too_many": signed(extra=1),
        "key_twice": good.replace(b'"epoch": 0', b'"epoch": 1,\n "epoch": 0'),
        "checksum_wrong": good.replace(b'"samples_seen": 8', b'"samples_seen": 9'),
        "checksum_missing": json.dumps(STEP_1, indent=1, sort_keys=True).encode() + b"\n",
        "compact": json.dumps(json.loads(good)).encode(),
        "of_another_step": signed(step=2),
        "step_text": signed(step="1"),
        "step_true": signed(step=True),
        "step_1.0": signed(step=1.0),
        "metrics_list": signed(metrics=[]),
        "ok_metrics": signed(metrics={"loss": 0.25, "count": 3}),
        "metrics_text": signed(metrics={"loss": "0.5"}),
        "metrics_null": signed(metrics={"loss": None}),
        "metrics_nested": signed(metrics={"loss": {"mean": 0.5}}),
        "metrics_huge": signed(metrics={"loss": 10**400}),
        "versions_number": signed(versions={"torch": 2}),
        "file_entry_more": signed(files={"model.pt": {**entry, "mode": 420}}),
        "sha256_short": signed(files={"model.pt": {**entry, "sha256": "00"}}),
        "written_at_text": signed(written_at="now"),
        "written_at_huge": signed(written_at=1e300),
        "files_list": signed(files=["model.pt"]),
        "files_null": signed(files=None),
        "file_entry_text": signed(files={"model.pt": "7"}),
        "file_entry_empty": signed(files={"model.pt": {}}),
        "size_true": signed(files={"model.pt": {**entry, "size_bytes": True}}),
        "size_negative": signed(files={"model.pt": {**entry, "size_bytes": -1}}),
        "size_huge": signed(files={"model.pt": {**entry, "size_bytes": 1 << 70}}),
        "sha256_null": signed(files={"model.pt": {**entry, "sha256": None}}),
        "file_outside": signed(files=file_named("../model.pt")),
        "file_absolute": signed(files=file_named("/etc/passwd")),
        "file_parent": signed(files=file_named("..")),
        "file_no_name": signed(files=file_named("")),
        "file_nul": signed(files=file_named("model.pt\0")),
        "file_surrogate": signed(files=file_named("\udcff")),
        "file_name_too_long": signed(files=file_named("m" * 300)),
        "file_is_missing": signed(files=file_named("optimizer.pt")),
    }


# -------------------------------------------------------------------------------------------- archives


def tar(*members, format=tarfile.PAX_FORMAT, **options):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format, **options) as archive:
        for name, data, *fields in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in (fields[0] if fields else {}).items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zipped(*members, compression=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data, *mode in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = compression
            info.external_attr = (mode[0] if mode else stat.S_IFREG | 0o644) << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def nameless_zip():
    """One member whose name has no bytes, which zipfile would not write."""
    whole = zipped(("x", b""))
    at = whole.index(b"PK\x01\x02")
    local, central, end = whole[:30] + whole[31:at], whole[at : at + 46], whole[at + 47 :]
    local, central = local[:26] + b"\0\0" + local[28:], central[:28] + b"\0\0" + central[30:]
    return local + central + end[:12] + struct.pack("<LL", len(central), len(local)) + end[20:]


def header(name=b"a", size=b"0" * 11 + b"\0", kind=b"0", more=None):
    """One tar header as bytes, its checksum right, for what tarfile would not write."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108], block[124:136], block[156:157] = b"0000644\0", size, kind
    block[257:265] = b"ustar\x0000"
    for at, data in (more or {}).items():
        block[at : at + len(data)] = data
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def patched(data, at, new):
    return data[:at] + new + data[at + len(new) :]


def base256(number):
    return b"\x80" + number.to_bytes(11, "big")


END = b"\0" * 1024
ZEROS = b"\0" * (2 << 20)


def archives():
    fine = tar(("a/b", b"12"), ("c", b"3"))
    plain_zip = zipped(("a/b", b"12"), ("c", b"3"), compression=zipfile.ZIP_STORED)
    central = plain_zip.index(b"PK\x01\x02")
    link = {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}
    hard = {"type": tarfile.LNKTYPE, "linkname": "../secret"}
    sparse_pax = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "../evil"}
    return {
        "ok.tar": fine,
        "ok.tar.gz": gzip.compress(fine, mtime=0),
        "ok.tar.bz2": bz2.compress(fine),
        "ok.tar.xz": lzma.compress(fine),
        "ok.zip": plain_zip,
        "ok_empty.tar": tar(),
        "ok_empty.zip": zipped(),
        "name_empty.zip": nameless_zip(),
        "ok_dots.tar": tar(("./a//b", b"1")),
        "empty": b"",
        "one_block_of_zeros_and_then_text": b"\0" * 512 + b"text" * 128,
        "path_up.tar": tar(("../evil", b"1")),
        "path_up_inside.tar": tar(("a/../../evil", b"1")),
        "path_up.zip": zipped(("../evil", b"1")),
        "path_absolute.tar": tar(("/tmp/evil", b"1")),
        "path_absolute.zip": zipped(("/tmp/evil", b"1")),
        "path_backslash.zip": zipped(("a\\..\\..\\evil", b"1")),
        "path_drive.zip": zipped(("C:/evil", b"1")),
        "path_pax_up.tar": tar(("a", b"1", {"pax_headers": {"path": "../evil"}})),
        "path_prefix_up.tar": header(b"evil", more={345: b"../.."}) + END,
        "path_long_gnu_up.tar": tar(("../" * 60 + "evil", b"1"), format=tarfile.GNU_FORMAT),
        "path_deep.tar": tar(("/".join("d" * 101), b"1")),
        "path_is_a_file_and_a_folder.tar": tar(("a", b"1"), ("a/b", b"2")),
        "name_twice.tar": tar(("a", b"1"), ("a", b"2")),
        "name_not_utf8.tar": tar(("a\udcff", b"1"), format=tarfile.GNU_FORMAT),
        "name_newline.tar": tar(("a\nb", b"1")),
        "name_nul.zip": plain_zip.replace(b"a/b", b"a\0b"),
        "link_symbolic.tar": tar(("door", b"", link), ("door/evil", b"1")),
        "link_hard.tar": tar(("door", b"", hard)),
        "link_symbolic.zip": zipped(("door", b"/etc/passwd", stat.S_IFLNK | 0o777)),
        "link_hard_with_pax_size.tar": tar(("door", b"", {**hard, "pax_headers": {"size": "512"}})),
        "device_character.tar": tar(("null", b"", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})),
        "device_block.tar": tar(("disk", b"", {"type": tarfile.BLKTYPE})),
        "device_pipe.tar": tar(("pipe", b"", {"type": tarfile.FIFOTYPE})),
        "device_pipe.zip": zipped(("pipe", b"", stat.S_IFIFO | 0o644)),
        "type_unknown.tar": header(kind=b"Z") + END,
        "bomb.zip": zipped(("zeros", ZEROS)),
        "bomb.tar.gz": gzip.compress(tar(("zeros", ZEROS)), mtime=0),
        "bomb.tar.xz": lzma.compress(tar(("zeros", ZEROS))),
        "bomb_of_members.tar.gz": gzip.compress(tar(*((str(n), b"") for n in range(200))), mtime=0),
        "bomb_of_padding.tar.xz": lzma.compress(fine + ZEROS * 40),
        "bomb_overlapping.zip": patched(plain_zip, plain_zip.rindex(b"PK\x01\x02") + 42, b"\0\0\0\0"),
        "truncated.tar": fine[:700],
        "truncated.tar.gz": gzip.compress(fine, mtime=0)[:-20],
        "truncated.zip": plain_zip[:-10],
        "end_mark_missing.tar": fine[:1024],
        "trailing_text.tar": fine + b"text",
        "header_checksum_wrong.tar": patched(fine, 0, b"z"),
        "second_header_damaged.tar": patched(fine, 1024, b"z"),
        "crc_wrong.zip": patched(plain_zip, plain_zip.index(b"12"), b"21"),
        "crc_wrong.tar.gz": patched(gzip.compress(fine, mtime=0), -8, b"1234"),
        "size_huge.tar": header(size=b"77777777777\0") + b"1" * 512 + END,
        "size_huge_base256.tar": header(size=base256(1 << 62)) + END,
        "size_larger_than_any.tar": header(size=base256((1 << 88) - 1)) + END,
        "size_negative.tar": header(size=b"\xff" * 12) + END,
        "size_minus_512.tar": header(size=b"\xff" * 10 + b"\xfe\x00") + END,
        "size_text.tar": header(size=b"two bytes\0\0\0") + END,
        "size_unlike.zip": patched(plain_zip, central + 24, struct.pack("<I", 1 << 20)),
        "size_huge.zip": patched(plain_zip, central + 24, b"\xfe\xff\xff\xff"),
        "size_pax_huge.tar": tar(("a", b"1", {"pax_headers": {"size": "9" * 30}})),
        "size_pax_negative.tar": tar(("a", b"1", {"pax_headers": {"size": "-512"}})),
        "size_pax_text.tar": tar(("a", b"1", {"pax_headers": {"size": "many"}})),
        "pax_header_huge.tar": header(size=base256(1 << 40), kind=b"x") + END,
        "pax_record_length_wrong.tar": header(size=b"00000000014\0", kind=b"x")
        + b"99 path=a\n\n\n".ljust(512, b"\0")
        + header()
        + END,
        "either_pax_without_records.tar": header(size=b"00000000020\0", kind=b"x")
        + (b"9" * 16).ljust(512, b"\0")
        + header()
        + END,
        "pax_chain.tar.gz": gzip.compress(
            (header(size=b"00000000013\0", kind=b"x") + b"11 path=b\n\n".ljust(512, b"\0")) * 600 + END,
            mtime=0,
        ),
        "long_name_chain.tar.gz": gzip.compress(
            (header(size=b"00000000002\0", kind=b"L") + b"b\0".ljust(512, b"\0")) * 600 + END, mtime=0
        ),
        "ok_sparse_gnu_empty.tar": header(kind=b"S", size=b"00000000001\0") + b"1".ljust(512, b"\0") + END,
        "sparse_gnu_huge.tar": header(kind=b"S", more={483: b"77777777777\0"}) + END,
        "sparse_pax.tar": tar(("a", b"1\n0\n1\n".ljust(512, b"\0"), {"pax_headers": sparse_pax})),
        "encrypted.zip": patched(plain_zip, central + 8, b"\x01"),
        "method_unknown.zip": patched(plain_zip, central + 10, b"\x63"),
        "central_offset_wrong.zip": patched(plain_zip, len(plain_zip) - 6, b"\xff\xff\xff\x7f"),
        "ok_members_declared_65535.zip": patched(plain_zip, len(plain_zip) - 14, b"\xff\xff\xff\xff"),
    }


def main():
    for kind, files in (("manifest", manifests()), ("archive", archives())):
        folder = FOLDER / kind
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        for name, data in files.items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
