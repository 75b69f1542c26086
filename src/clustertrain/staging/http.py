"""A file of a web server as a source: `http://` or `https://`, opened at any byte of a known version.

urllib3 makes the connections. Ranges, If-Range and redirects are here, because a server may send anything:
each value of an answer is checked before it is used, sent back or printed.
"""

from __future__ import annotations

import http.client
import io
import re
import ssl
import time
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from urllib3 import BaseHTTPResponse, PoolManager, ProxyManager, Timeout, make_headers
from urllib3.exceptions import (
    HTTPError,
    InvalidHeader,
    LocationValueError,
    ProxyError,
    ProxySchemeUnknown,
    ReadTimeoutError,
)
from urllib3.util import parse_url

from clustertrain.errors import DataError
from clustertrain.staging.source import CutShort, Stream, masked
from clustertrain.staging.timed_http import PART_BYTES, Clock, clock_of, timed
from clustertrain.storage.header_values import content_range, length_of, validator_of
from clustertrain.storage.location import DOWNLOAD_TIMEOUT_S
from clustertrain.units import duration_text, shortened, size_text

ANSWER_S = 20.0  # for a connection, for the head of an answer, and for each PART_BYTES of its body
_RETRYABLE_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_REDIRECTS = {301, 302, 303, 307, 308}
_MOST_REDIRECTS = 10
_DECODED = {"gzip", "x-gzip", "deflate"}
_ANY_HEADER = zlib.MAX_WBITS | 32  # of gzip or of zlib
_MOST_RATIO, _RATIO_FROM_BYTES = 200, 64 << 20
_COMPRESSED_NAME = re.compile(r"\.(gz|tgz|z|svgz)$", re.IGNORECASE)
_YOURSELF = "Download it yourself, and use the path as the URI."


@dataclass(frozen=True)
class HttpSource:
    """A file of a web server; proxies are taken from the environment (`https_proxy`, `no_proxy`).

    `timeout_s` after its creation the download is over, whatever the server does.
    """

    url: str
    timeout_s: float = DOWNLOAD_TIMEOUT_S
    began_at: float = field(default_factory=time.monotonic)
    retry_s: None = None
    supports_ranges: bool = False

    def open(self, offset: int, validator: str | None, end: int | None = None) -> Stream:
        if validator and (offset or end):
            last = "" if end is None else end - 1
            answer = self._get({"Range": f"bytes={offset}-{last}", "If-Range": validator})
            if (stream := self._part(answer, offset, validator, end)) is not None:
                return stream
            answer.close()  # the range of another version; request the whole file
        answer = self._get({})
        if answer.status in (206, 416):
            answer.close()
            raise DataError(
                f"{masked(self.url)} cannot be fetched: HTTP {answer.status} for a request without a range."
                f"\n{_YOURSELF}"
            )
        return self._whole(answer)

    def _part(self, answer: BaseHTTPResponse, offset: int, validator: str, end: int | None) -> Stream | None:
        """The requested range, or the whole file; None for anything else."""
        now, asked = _validator(answer), answer.headers.get("Content-Range", "")
        if answer.status == 416:  # no bytes from the offset on: the file is complete, or it has changed
            total = re.fullmatch(r"bytes \*/([0-9]{1,19})", asked)
            if total is None or int(total[1]) != offset or now not in (None, validator):
                return None
            answer.close()
            return Stream(io.BytesIO(), offset, offset, offset, validator)
        if answer.status != 206:
            return self._whole(answer)
        found = content_range(asked)
        if found is None or now not in (None, validator) or "Content-Encoding" in answer.headers:
            return None
        first, last, total_bytes = found
        if last + 1 != (end or total_bytes):
            return None
        body = _Body(self, answer)
        return Stream(body, first, last + 1, total_bytes, validator, _is_strong(validator))

    def _whole(self, answer: BaseHTTPResponse) -> Stream:
        is_chunked = "chunked" in answer.headers.get("Transfer-Encoding", "").lower()
        length = None if is_chunked else answer.headers.get("Content-Length")
        total_bytes = None if length is None else length_of(length)
        what = None
        if length is None and not is_chunked:
            what = "the server sends no length, so a cut could not be detected"
        elif length is not None and total_bytes is None:
            what = f"its Content-Length is {shortened(length)!r}, not a number of bytes"
        encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
        decode = encoding in _DECODED and not _COMPRESSED_NAME.search(urlsplit(self.url).path)
        if encoding not in ("", "identity", *_DECODED):
            what = f"the server sends it in the encoding {shortened(encoding)!r}, although none was requested"
        if what is not None:
            answer.close()
            raise DataError(f"{masked(self.url)}: {what}.\n{_YOURSELF}")
        body = _Body(self, answer)
        if decode:  # its length is that of the encoded bytes, which the caller cannot count
            answer.enforce_content_length = True  # type: ignore[attr-defined]
            return Stream(_Decompressed(body, self.url), 0, None, None, None)
        now = _validator(answer)
        ranges = answer.headers.get("Accept-Ranges", "").strip().lower() == "bytes"
        splits = ranges and total_bytes is not None and _is_strong(now)
        return Stream(body, 0, total_bytes, total_bytes, now, splits)

    def _get(self, headers: dict[str, str]) -> BaseHTTPResponse:
        """The answer with the file, a range of it, or 416, after any redirects."""
        url = self.url
        for _ in range(_MOST_REDIRECTS):
            answer = self._request(url, headers)
            to = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or to is None:
                self._check_status(answer)
                return answer
            answer.close()
            url = self._redirected(url, to)
        raise DataError(
            f"{masked(self.url)} cannot be fetched: more than {_MOST_REDIRECTS} redirects, the last one to "
            f"{masked(url)}.\nUse the final address as the URI."
        )

    def _request(self, url: str, headers: dict[str, str]) -> BaseHTTPResponse:
        wait_s = min(ANSWER_S, self.left_s())
        fixed = {"User-Agent": "clustertrain", "Accept-Encoding": "identity", "Connection": "close"}
        with self.explained(url):
            encoded = _encoded(url)
            return timed(_manager(encoded)).request(
                "GET",
                encoded,
                headers={**fixed, **headers},
                timeout=Timeout(connect=wait_s, read=wait_s),
                preload_content=False,
                decode_content=False,
                enforce_content_length=False,  # the caller counts, and resumes
                redirect=False,
                retries=False,
            )

    def _redirected(self, url: str, to: str) -> str:
        try:
            target = urljoin(url, to)
            scheme = urlsplit(target).scheme
        except ValueError:
            target = scheme = ""
        if not target.isprintable() or scheme not in ("http", "https"):
            raise DataError(
                f"{masked(url)} redirects to {shortened(masked(to), 200)!r}, which is no http(s) address.\n"
                "Use the final address as the URI."
            )
        if urlsplit(url).scheme.lower() == "https" and scheme == "http":
            raise DataError(
                f"{masked(url)} redirects to {masked(target)}, which is less secure.\n"
                "Use the final address as the URI."
            )
        return target

    def _check_status(self, answer: BaseHTTPResponse) -> None:
        if answer.status in (200, 203, 206, 416):
            return
        answer.close()
        message = f"HTTP {answer.status} {shortened(answer.reason or '')}".rstrip()
        if answer.status in _RETRYABLE_STATUSES:
            after = answer.headers.get("Retry-After", "")
            is_number = re.fullmatch(r"[0-9]{1,9}", after)
            raise CutShort(message, retry_after_s=float(after) if is_number else 0.0)
        remedy = "The server requires credentials: download the file yourself, and use its path as the URI."
        if answer.status not in (401, 403):
            remedy = "Correct the address."
        raise DataError(f"{masked(self.url)} cannot be fetched: {message}.\n{remedy}")

    def left_s(self) -> float:
        """The time until the end of the download.

        Raises:
            DataError: it is over.
        """
        left_s = self.began_at + self.timeout_s - time.monotonic()
        if left_s <= 0:
            raise DataError(
                f"{masked(self.url)} was not complete after {duration_text(self.timeout_s)}, the limit "
                "`timeout` of this data set (data.*.timeout).\n"
                "Run again to continue from there, or raise the limit."
            )
        return left_s

    @contextmanager
    def explained(self, url: str, clock: Clock | None = None) -> Iterator[None]:
        """Turns the errors of a request, or with `clock` of its body, into CutShort and DataError."""
        try:
            yield
        except InvalidHeader as error:  # two lengths that differ
            raise DataError(f"{masked(url)}: {shortened(str(error), 200)}.\n{_YOURSELF}") from error
        except (LocationValueError, ProxySchemeUnknown, UnicodeError) as error:
            reason = shortened(str(error), 200)
            raise DataError(f"{masked(url)} is not a URL: {reason}.\nCorrect the address.") from error
        except (HTTPError, OSError, http.client.HTTPException) as error:
            if (untrusted := _certificate_error(error)) is not None:
                raise DataError(
                    f"{masked(url)}: its certificate is not trusted: {untrusted.verify_message}.\n"
                    "Correct the address, or set SSL_CERT_FILE to the file with your site's CA certificates."
                ) from error
            self.left_s()
            raise CutShort(_reason(error, clock)) from error


class _Body:
    """The body of an answer, under its clock."""

    def __init__(self, source: HttpSource, answer: BaseHTTPResponse) -> None:
        self._source = source
        self._answer = answer
        self._clock = clock_of(answer)

    def read1(self, size: int, /) -> bytes:
        self._clock.start(self._source.left_s())
        with self._source.explained(self._source.url, self._clock):
            data = self._answer.read1(size, decode_content=False) or b""
        self._clock.stop(len(data))
        return data

    def close(self) -> None:
        self._answer.close()


class _Decompressed:
    """The content of a body in gzip or deflate. urllib3 takes the end of a body for the end of the compressed
    stream; here the stream has to end by itself, with its checksum."""

    def __init__(self, body: _Body, url: str) -> None:
        self._body = body
        self._url = url
        self._stream = zlib.decompressobj(_ANY_HEADER)
        self._rest = b""
        self._received_bytes = self._content_bytes = 0

    def read1(self, size: int, /) -> bytes:
        content = b""
        while not content:
            if not self._rest:
                self._rest = self._body.read1(size)
                self._received_bytes += len(self._rest)
            is_over = not self._rest
            if self._stream.eof:
                if is_over:
                    return b""
                self._stream = zlib.decompressobj(_ANY_HEADER)  # the next member of the gzip
            try:
                content = self._stream.decompress(self._rest, size)
            except zlib.error as error:
                raise CutShort(f"its compressed body (gzip or deflate) is damaged: {error}") from error
            self._rest = self._stream.unconsumed_tail or self._stream.unused_data
            if is_over and not content and not self._stream.eof:
                raise CutShort(f"its compressed body ends too early, after {self._received_bytes} bytes")
        self._content_bytes += len(content)
        if self._content_bytes > max(_RATIO_FROM_BYTES, _MOST_RATIO * self._received_bytes):
            raise DataError(
                f"{masked(self._url)}: its first {size_text(self._received_bytes)} decompress to more than "
                f"{size_text(self._content_bytes)}; {_MOST_RATIO} times as much is the limit.\n{_YOURSELF}"
            )
        return content

    def close(self) -> None:
        self._body.close()


def _manager(url: str) -> PoolManager:
    """A manager of connections to the server of a URL, or to the proxy that the environment gives for it."""
    target = parse_url(url)
    proxy = urllib.request.getproxies().get(target.scheme or "")
    if not proxy or urllib.request.proxy_bypass(target.netloc or ""):
        return PoolManager(num_pools=1)
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    user = parse_url(proxy).auth
    return ProxyManager(proxy, proxy_headers=make_headers(proxy_basic_auth=unquote(user)) if user else None)


def _encoded(url: str) -> str:
    """The URL as a request contains it: spaces and letters of its path and query percent-encoded."""
    parts = urlsplit(url)
    path, query = (
        quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", text), safe="/%:@!$&'()*+,;=~?")
        for text in (parts.path, parts.query)
    )
    host = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    return urlunsplit((parts.scheme.lower(), host, path or "/", query, ""))


def _certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """The refused certificate behind an error of urllib3, if there is one."""
    seen: list[Any] = [error]
    for each in seen:
        if isinstance(each, ssl.SSLCertVerificationError):
            return each
        if isinstance(each, HTTPError) and len(seen) < 8:
            seen += [inner for inner in each.args if isinstance(inner, Exception)]
    return None


def _reason(error: Exception, clock: Clock | None) -> str:
    if isinstance(error, ReadTimeoutError):
        if clock is None:
            return f"the server did not answer within {ANSWER_S:g} s"
        return f"the server sent less than {size_text(PART_BYTES)} in {clock.limit_s:g} s"
    original = error.original_error if isinstance(error, ProxyError) else error
    name = "" if isinstance(original, HTTPError) else f"{type(original).__name__}: "
    return shortened(f"{name}{original}", 200)


def _is_strong(validator: str | None) -> bool:
    """Whether it is a strong ETag, which identifies the bytes; a date does not change within a second."""
    return validator is not None and validator.startswith('"')


def _validator(answer: BaseHTTPResponse) -> str | None:
    """The validator for If-Range: a strong ETag, otherwise the date."""
    etag = validator_of(answer.headers.get("ETag"))
    if etag and not etag.startswith("W/"):
        return etag
    return validator_of(answer.headers.get("Last-Modified"))
