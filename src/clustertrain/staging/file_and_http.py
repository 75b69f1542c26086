"""Sources of a file: a path, `file://` or `http(s)://`, opened at any byte of a known version.

`s3://` is in s3.py. HTTP is the standard library's: urllib3 and requests add pools and repeated requests, and
leave ranges, If-Range and what their answers mean to the caller as well.
"""

from __future__ import annotations

import http.client
import io
import os
import re
import ssl
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from clustertrain.errors import DataError, JobError
from clustertrain.staging.source import CutShort, Source, Stream, masked
from clustertrain.storage.location import Location, local_path
from clustertrain.storage.posix import refused

TIMEOUT_S = 20.0  # to connect, and for every read; also the maximum delay of a stop if a server hangs
_RETRYABLE_STATUSES = {408, 425, 429, 500, 502, 503, 504}


class _NothingThere(Exception):
    """The server has no bytes from the requested offset on: the file is complete, or it has changed."""

    def __init__(self, total_bytes: int | None, validator: str | None) -> None:
        super().__init__(total_bytes)
        self.total_bytes = total_bytes
        self.validator = validator


def is_http(uri: str) -> bool:
    return re.match(r"https?://", uri, re.IGNORECASE) is not None


def open_source(location: Location) -> Source:
    """The source behind a URI.

    Raises:
        JobError: a scheme that is not supported, or credentials in the URI.
        DataError: an S3 URI without an object key.
    """
    uri = location.uri
    if location.is_s3:
        from clustertrain.staging.s3 import S3Source

        return S3Source.of(location)
    if not is_http(uri):
        return FileSource(local_path(uri, what="data"))
    if "@" in urlsplit(uri).netloc:
        raise JobError(
            f"{masked(uri)} contains credentials.\nRemove them: a URI ends up in logs and records."
        )
    return HttpSource(uri)


@dataclass(frozen=True)
class FileSource:
    """A file of this machine, or of a file system it mounts."""

    path: Path
    retry_s: None = None
    supports_ranges: bool = False

    def open(self, offset: int, validator: str | None, end: int | None = None) -> Stream:
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise DataError(f"{self.path} is not a regular file.\nGive a file or a folder.")
            file = self.path.open("rb")
        except OSError as error:
            raise missing(self.path, error) from error
        found = os.fstat(file.fileno())
        now = self._validator(found)
        offset = offset if now == validator else 0
        file.seek(offset)
        return Stream(file, offset, found.st_size, found.st_size, now)

    def validator(self) -> str:
        """The validator that `open` would return now."""
        try:
            return self._validator(self.path.stat())
        except OSError as error:
            raise missing(self.path, error) from error

    @staticmethod
    def _validator(found: os.stat_result) -> str:
        return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}"


def missing(path: Path, error: OSError) -> DataError:
    """The DataError for local data that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return DataError(
            f"{path} does not exist on {os.uname().nodename} (working directory: {Path.cwd()}).\n"
            "Correct the path, or put the data on a path that every node sees."
        )
    return DataError(str(refused(path, "read", error)))


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(  # noqa: PLR0917  the library calls it so
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        if not newurl.lower().startswith(("https://", "http://" if req.type == "http" else "https://")):
            raise DataError(
                f"{masked(req.full_url)} redirects to {masked(newurl)}, which is less secure.\n"
                "Use the final address as the URI."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@dataclass(frozen=True)
class HttpSource:
    """A file of a web server; proxies are taken from the environment (`https_proxy`, `no_proxy`)."""

    url: str
    retry_s: None = None
    supports_ranges: bool = False

    def open(self, offset: int, validator: str | None, end: int | None = None) -> Stream:
        headers = {"User-Agent": "clustertrain", "Accept-Encoding": "identity"}
        if validator and (offset or end):
            last = "" if end is None else end - 1
            headers |= {"Range": f"bytes={offset}-{last}", "If-Range": validator}
        opener = urllib.request.build_opener(_Redirects)
        request = urllib.request.Request(_encoded(self.url), headers=headers)
        try:
            with self._explained():
                answer = opener.open(request, timeout=TIMEOUT_S)
        except _NothingThere as nothing:
            if nothing.total_bytes == offset and nothing.validator in (None, validator):
                return Stream(io.BytesIO(), offset, offset, offset, validator)
            return self.open(0, None)
        return self._stream(answer, validator, end)

    def _stream(self, answer: Any, validator: str | None, end: int | None) -> Stream:
        now = _validator(answer.headers)
        length = answer.headers.get("Content-Length")
        if answer.status == 206:
            match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", ""))
            if match is not None and now in (None, validator):
                first, last, total = int(match[1]), int(match[2]), int(match[3])
                if last + 1 == (end or total):
                    return Stream(answer, first, last + 1, total, validator, _is_strong(validator))
            answer.close()
            return self.open(0, None)  # the range of another version; request the whole file
        if length is None and not answer.chunked:
            answer.close()
            raise DataError(
                f"{masked(self.url)}: the server sends no length, so a cut could not be detected.\n"
                "Download it yourself, and use the path as the URI."
            )
        total_bytes = int(length) if length else None
        ranges = answer.headers.get("Accept-Ranges", "").strip().lower() == "bytes"
        return Stream(
            answer, 0, total_bytes, total_bytes, now, ranges and length is not None and _is_strong(now)
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except urllib.error.HTTPError as error:
            with error:
                self._refuse_status(error)
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise DataError(
                    f"{masked(self.url)}: its certificate is not trusted: {error.reason.verify_message}.\n"
                    "Correct the address, or set SSL_CERT_FILE to the file with your site's CA certificates."
                ) from error
            raise CutShort(str(error.reason)) from error
        except http.client.InvalidURL as error:
            raise DataError(f"{masked(self.url)} is not a URL: {error}.\nCorrect the address.") from error
        except (OSError, http.client.HTTPException) as error:
            raise CutShort(f"{type(error).__name__}: {error}") from error

    def _refuse_status(self, error: urllib.error.HTTPError) -> None:
        message = f"HTTP {error.code} {error.reason}"
        if error.code == 416:
            total = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
            raise _NothingThere(int(total[1]) if total else None, _validator(error.headers))
        if error.code in _RETRYABLE_STATUSES:
            after = error.headers.get("Retry-After", "")
            raise CutShort(message, retry_after_s=float(after) if after.isdecimal() else 0.0)
        remedy = "The server requires credentials: download the file yourself, and use its path as the URI."
        if error.code not in (401, 403):
            remedy = "Correct the address."
        raise DataError(f"{masked(self.url)} cannot be fetched: {message}.\n{remedy}") from None


def _encoded(url: str) -> str:
    """The URL with the spaces and letters of its path and query percent-encoded, as a request has them."""
    parts = urlsplit(url)
    path, query = (
        quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", text), safe="/%:@!$&'()*+,;=~?")
        for text in (parts.path, parts.query)
    )
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


def _is_strong(validator: str | None) -> bool:
    """Whether it is a strong ETag, which identifies the bytes; a date does not change within a second."""
    return validator is not None and validator.startswith('"')


def _validator(headers: Any) -> str | None:
    """The validator for If-Range: a strong ETag, otherwise the date."""
    etag: str | None = headers.get("ETag")
    if etag and not etag.startswith("W/"):
        return etag
    date: str | None = headers.get("Last-Modified")
    return date
