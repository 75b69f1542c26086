"""Answers of an S3 server, checked before they are used: the server may be another program, or lie.

`answer` is what a method of boto3's client returns, `entry` an item of a listing.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from clustertrain.storage.header_values import content_range, length_of, validator_of
from clustertrain.units import shortened


class Nonsense(ValueError):
    """An answer that cannot be used; the text names the value. boto3 itself raises ValueError for others."""


def text_of(value: object, most: int = 200) -> str:
    """A text of the server for a message: printable, on one line."""
    return shortened(str(value), most)


def size_of(answer: Any) -> int:
    """The size of an object in bytes, or of the range that was requested."""
    sent = _headers(answer).get("content-length")
    size_bytes = None if sent is None else length_of(sent)
    if size_bytes is None:
        raise _wrong("Content-Length", sent, "a number of bytes")
    return size_bytes


def etag_of(answer: Any) -> str:
    """The version of an object or of a part; it is sent back."""
    etag = validator_of(answer.get("ETag"))
    if etag is None:
        raise _wrong("ETag", answer.get("ETag"), "a text that can be sent back")
    return etag


def range_of(answer: Any, offset: int, end: int | None) -> tuple[int, int]:
    """(end, total) of the range of an object that an answer contains; it has to be the requested one.

    Args:
        end: the requested one, which the object may not reach; None for the end of the object.
    """
    sent = answer.get("ContentRange")
    found = None if sent is None else content_range(sent)
    if found is None:
        raise _wrong("Content-Range", sent, "a range of bytes")
    first, last, total = found
    if first != offset or last + 1 != (total if end is None else min(end, total)):
        requested = f"{offset}-{'' if end is None else end - 1}"
        raise Nonsense(f"it sent the bytes {first}-{last} of {total}, but {requested} were requested")
    if "content-length" in _headers(answer) and size_of(answer) != last + 1 - first:
        raise Nonsense(f"its range has {last + 1 - first} bytes, but its Content-Length is {size_of(answer)}")
    return last + 1, total


def upload_id_of(answer: Any) -> str:
    """The id of a multipart upload; it is sent back."""
    found = answer.get("UploadId")
    if not found or not found.isprintable():
        raise _wrong("UploadId", found, "a text that can be sent back")
    return str(found)


def objects_page(page: Any, prefix: str) -> dict[str, Any]:
    """A page of the objects and folders below a prefix, after a check that it is one, not a web page.

    Keys that are not printable are left out: they are of another program, and could change a terminal.
    """
    if not isinstance(page.get("IsTruncated"), bool):
        raise Nonsense("it sent no listing (IsTruncated is missing)")
    objects, folders = page.get("Contents", []), page.get("CommonPrefixes", [])
    for name, entries in (("Key", objects), ("Prefix", folders)):
        for entry in entries:
            if name not in entry or not entry[name].startswith(prefix):
                raise _wrong(name, entry.get(name), f"a key below {prefix!r}")
    for entry in objects:
        if not isinstance(entry.get("LastModified"), datetime):
            raise _wrong("LastModified", entry.get("LastModified"), "a time")
    return {
        **page,
        "Contents": [entry for entry in objects if entry["Key"].isprintable()],
        "CommonPrefixes": [entry for entry in folders if entry["Prefix"].isprintable()],
    }


def uploads_page(page: Any, prefix: str) -> dict[str, Any]:
    """A page of the unfinished uploads below a prefix; some servers list all. Those without a key or an id
    that can be sent back are left out."""
    uploads = [
        entry
        for entry in page.get("Uploads", [])
        if entry.get("Key", "").startswith(prefix)
        and all((entry.get(name) or "\n").isprintable() for name in ("Key", "UploadId"))
    ]
    return {**page, "Uploads": uploads}


def check_progress(marks: dict[str, str], next_marks: dict[str, str]) -> None:
    """Check that a listing comes to an end. `marks`: where it was continued for a page, and then after it."""
    if next_marks and next_marks == marks:
        raise Nonsense("its listing repeats one page without end")


def _headers(answer: Any) -> dict[str, str]:
    headers: dict[str, str] = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return headers


def _wrong(name: str, value: object, rule: str) -> Nonsense:
    if value is None:
        return Nonsense(f"it sent no {name}")
    return Nonsense(f"it sent {name} {text_of(repr(value))}, not {rule}")
