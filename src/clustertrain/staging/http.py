"""A file of a web server, `http://` or `https://`: urllib follows redirects and knows the proxies."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, build_opener

from urllib3.util import parse_url

from clustertrain.errors import DataError, JobError
from clustertrain.node.units import shortened
from clustertrain.staging.part import Download
from clustertrain.staging.source import CHUNK_BYTES, CutShort, masked

ANSWER_S = 20.0  # for a connection, and then for each byte
_PASSING_STATUSES = {408, 425, 429, *range(500, 600)} - {501, 505}  # Cloudflare has 520 to 530
_COMPRESSED_NAME = re.compile(r"\.(gz|tgz|z|svgz)$", re.IGNORECASE)


def receive(url: str, part: Download) -> None:
    """Receive a file, or the rest of it if the server has still the version of which there is a part.

    Raises:
        CutShort: a transient error.
        DataError: a permanent error: the file does not exist or access is refused.
        JobError: there are credentials in the URL.
        StorageError: it does not fit on the disk.
    """
    with _answer(url, part.validator, part.received_bytes) as answer:
        if answer.status == 200:
            part.begin(*_version_of(url, answer))
        elif _is_rest(answer, part.validator, part.received_bytes):
            part.total_bytes = part.received_bytes + answer.length
        else:
            part.begin(None, None)
            raise CutShort("the server sent another range than the requested one, or another version")
        part.append(_blocks_of(url, answer))


def _answer(url: str, validator: str | None, offset: int) -> Any:
    """Return the answer after any redirects: whole, or from `offset` on if the file is still `validator`."""
    if "@" in urlsplit(url).netloc:
        raise JobError(
            f"{masked(url)} contains credentials.\nRemove them: a URI ends up in logs and records."
        )
    headers = {"User-Agent": "clustertrain", "Accept-Encoding": "identity"}
    if validator is not None:
        headers |= {"Range": f"bytes={offset}-", "If-Range": validator}
    with _explained(url):
        request = Request(parse_url(url).url, headers=headers)  # with what needs it percent-encoded
        try:
            answer = build_opener().open(request, timeout=ANSWER_S)
        except HTTPError as error:
            answer = error
    if answer.status == 200 or (validator is not None and answer.status in (206, 416)):
        return answer
    answer.close()
    message = f"HTTP {answer.status} {shortened(answer.reason or '', 200)}".rstrip()
    raise CutShort(message) if answer.status in _PASSING_STATUSES else _refusal(url, message)


def _is_rest(answer: Any, validator: str | None, offset: int) -> bool:
    """Return whether an answer has the bytes from `offset` of that version."""
    is_range = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {offset}-")
    return is_range and answer.length is not None and _validator(answer) in (None, validator)


def _version_of(url: str, answer: Any) -> tuple[str | None, int | None]:
    """Return the version and the length of a whole file; one in chunks has neither, but it has an end.

    Raises:
        DataError: it has an encoding, or no end.
    """
    if answer.length is None and not answer.chunked:
        raise _refusal(url, "the server sends no length, so a cut could not be detected")
    encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity") and not _COMPRESSED_NAME.search(urlsplit(url).path):  # Apache: tar.gz
        what = f"the server sends it in the encoding {shortened(encoding)!r}, although none was requested"
        raise _refusal(url, what)
    return None if answer.length is None else _validator(answer), answer.length


def _blocks_of(url: str, answer: Any) -> Iterator[bytes]:
    """Yield the bytes of an answer, each block as soon as it has arrived."""
    with _explained(url):
        while data := answer.read1(CHUNK_BYTES):
            yield data


def _validator(answer: Any) -> str | None:
    etag: str = answer.headers.get("ETag", "")
    date: str | None = answer.headers.get("Last-Modified")
    return etag if etag.startswith('"') else date


def _refusal(url: str, what: str) -> DataError:
    return DataError(
        f"{shortened(masked(url), 200)} cannot be fetched: {what}.\n"
        "Correct the address, or download it yourself, and use its path as the URI."
    )


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn the errors of a request into CutShort and DataError."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, str):  # no address of a server or of a proxy
            raise _refusal(url, shortened(cause, 200)) from error
        raise CutShort(shortened(f"{type(cause).__name__}: {cause}", 200)) from error
    except ValueError as error:
        raise _refusal(url, f"it is not a URL: {shortened(str(error), 200)}") from error
