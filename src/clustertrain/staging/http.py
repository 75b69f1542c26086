"""A file of a web server as a source: `http://` or `https://`, opened at any byte of a known version.

urllib3 makes the connections. Ranges, If-Range and redirects are here, because a server may send anything:
each value of an answer is checked before it is used, sent back or printed. timed_http.py limits their time.
"""

from __future__ import annotations

import http.client
import re
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from urllib3 import PoolManager, ProxyManager, make_headers
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
from clustertrain.staging.header_values import number_of, sent_range, validator_of
from clustertrain.staging.source import CHUNK_BYTES, CutShort, NotThatRange, Source, Stream, masked
from clustertrain.staging.timed_http import timed
from clustertrain.units import shortened, size_text

ANSWER_S = 20.0  # for a connection, for the head of an answer, and for each of these parts of its body:
_TIMED_BYTES = 10 << 10
_RETRYABLE_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_MOST_REDIRECTS = 10
_DECODED = {"gzip", "x-gzip", "deflate"}
_ANY_HEADER = zlib.MAX_WBITS | 32  # of gzip or of zlib
_MOST_RATIO, _RATIO_FROM_BYTES = 200, 64 << 20
_COMPRESSED_NAME = re.compile(r"\.(gz|tgz|z|svgz)$", re.IGNORECASE)
_UNTRUSTED = re.compile(r"certificate verify failed: ([^(]*[^(\s.])")
_YOURSELF = "Download it yourself, and use the path as the URI."
_FINAL = "Use the final address as the URI."


@dataclass(frozen=True)
class HttpSource(Source):
    """A file of a web server; proxies are taken from the environment (`https_proxy`, `no_proxy`)."""

    url: str
    timeout_s: float

    @property
    def _answer_s(self) -> float:
        return min(ANSWER_S, self.timeout_s)

    @property
    def _is_compressed(self) -> bool:
        """Whether its own bytes are the compressed ones: Apache names their encoding for a tar.gz as well."""
        return _COMPRESSED_NAME.search(urlsplit(self.url).path) is not None

    def read_range(self, offset: int, end: int | None, validator: str | None) -> Stream:
        request = {}
        if validator and (offset or end):
            last = "" if end is None else end - 1
            request = {"Range": f"bytes={offset}-{last}", "If-Range": validator}
        answer = self._get(request)
        try:
            if answer.status in (200, 203):
                return self._whole(answer)
            if request and answer.status in (206, 416):
                return self._range(answer, offset, end, validator)
            raise self._failure(answer)
        except BaseException:
            answer.close()
            raise

    def _range(self, answer: Any, offset: int, end: int | None, validator: str | None) -> Stream:
        """The stream of an answer to a request for a range; it is empty if the file has no byte there."""
        sent = answer.headers.get("Content-Range", "")
        found = sent_range(sent, offset, end) if answer.status == 206 else None
        if answer.status == 416 and end is None and sent == f"bytes */{offset}":
            found = offset, offset, offset
        is_encoded = _encoding(answer) and not self._is_compressed
        if found is None or is_encoded or _validator(answer) not in (None, validator):
            raise NotThatRange("the server sent another range than the requested one, or of another version")
        return Stream(self._blocks(answer), answer.close, *found, validator, has_ranges=True)

    def _whole(self, answer: Any) -> Stream:
        length = None if answer.chunked else answer.headers.get("Content-Length")
        total_bytes = None if length is None else number_of(length)
        encoding = _encoding(answer)
        if length is None and not answer.chunked:
            raise self._refusal("the server sends no length, so a cut could not be detected")
        if length is not None and total_bytes is None:
            raise self._refusal(f"its Content-Length is {shortened(length)!r}, not a number of bytes")
        if encoding and encoding not in _DECODED:
            what = f"the server sends it in the encoding {shortened(encoding)!r}, although none was requested"
            raise self._refusal(what)
        blocks = self._blocks(answer)
        if encoding and not self._is_compressed:
            # its length is that of the encoded bytes, which the caller cannot count
            answer.enforce_content_length = True
            return Stream(self._decompressed(blocks), answer.close, 0, None, None, None)
        has_ranges = answer.headers.get("Accept-Ranges", "").strip().lower() == "bytes"
        return Stream(blocks, answer.close, 0, total_bytes, total_bytes, _validator(answer), has_ranges)

    def _blocks(self, answer: Any) -> Iterator[bytes]:
        """The body of an answer; gives up a server that is too slow."""
        clock, timed_bytes = answer.connection.clock, 0
        clock.left_s = self._answer_s
        with self._explained(self.url, f"sent less than {size_text(_TIMED_BYTES)} in {ANSWER_S:g} s"):
            while data := answer.read1(CHUNK_BYTES, decode_content=False):
                timed_bytes += len(data)
                if timed_bytes >= _TIMED_BYTES:
                    clock.left_s, timed_bytes = self._answer_s, 0
                yield data

    def _decompressed(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The content of a body in gzip or deflate. urllib3 takes the end of a body for the end of the
        compressed stream; here the stream has to end by itself, with its checksum."""
        stream = zlib.decompressobj(_ANY_HEADER)
        received_bytes = content_bytes = 0
        for block in blocks:
            data, received_bytes = block, received_bytes + len(block)
            while data:
                if stream.eof:
                    stream = zlib.decompressobj(_ANY_HEADER)  # the next member of the gzip
                try:
                    content = stream.decompress(data, CHUNK_BYTES)
                except zlib.error as error:
                    raise CutShort(f"its compressed body (gzip or deflate) is damaged: {error}") from error
                content_bytes += len(content)
                if content_bytes > max(_RATIO_FROM_BYTES, _MOST_RATIO * received_bytes):
                    sizes = f"{size_text(received_bytes)} decompress to more than {size_text(content_bytes)}"
                    raise self._refusal(f"its first {sizes}; {_MOST_RATIO} times as much is the limit")
                if content:
                    yield content
                data = stream.unconsumed_tail or stream.unused_data
        if not stream.eof:
            raise CutShort(f"its compressed body ends too early, after {received_bytes} bytes")

    def _get(self, headers: dict[str, str]) -> Any:
        """The answer after any redirects."""
        url = self.url
        for _ in range(_MOST_REDIRECTS):
            answer = self._request(url, headers)
            if not (to := answer.get_redirect_location()):
                return answer
            answer.close()
            url = self._redirected(url, to)
        raise self._refusal(f"more than {_MOST_REDIRECTS} redirects, the last one to {masked(url)}", _FINAL)

    def _request(self, url: str, headers: dict[str, str]) -> Any:
        fixed = {"User-Agent": "clustertrain", "Accept-Encoding": "identity", "Connection": "close"}
        with self._explained(url, f"did not answer within {ANSWER_S:g} s"):
            encoded = parse_url(url)._replace(fragment=None).url
            return timed(connections_to(encoded), encoded).request(
                "GET",
                encoded,
                headers={**fixed, **headers},
                timeout=self._answer_s,  # for the connection, and then for the head
                preload_content=False,
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
            what = f"it redirects to {shortened(masked(to), 200)!r}, which is no http(s) address"
            raise self._refusal(what, _FINAL)
        if urlsplit(url).scheme.lower() == "https" and scheme == "http":
            raise self._refusal(f"it redirects to {masked(target)}, which is less secure", _FINAL)
        return target

    def _failure(self, answer: Any) -> Exception:
        """The error for an answer with neither the file nor the requested range."""
        message = f"HTTP {answer.status} {shortened(answer.reason or '')}".rstrip()
        if answer.status in _RETRYABLE_STATUSES:
            return CutShort(message, retry_after_s=number_of(answer.headers.get("Retry-After", "")) or 0)
        remedy = "The server requires credentials: download the file yourself, and use its path as the URI."
        return self._refusal(message, remedy if answer.status in (401, 403) else "Correct the address.")

    def _refusal(self, what: str, remedy: str = _YOURSELF) -> DataError:
        return DataError(f"{masked(self.url)} cannot be fetched: {what}.\n{remedy}")

    @contextmanager
    def _explained(self, url: str, silence: str) -> Iterator[None]:
        """Turns the errors of a request into CutShort and DataError; `silence` is what a timeout means."""
        try:
            yield
        except InvalidHeader as error:  # two lengths that differ
            raise self._refusal(shortened(str(error), 200)) from error
        except ProxySchemeUnknown as error:
            raise DataError(
                f"{urlsplit(url).scheme}_proxy in the environment is not the address of an http(s) proxy.\n"
                "Correct it (http://host:port, with a password percent-encoded), or unset it."
            ) from error
        except (LocationValueError, UnicodeError) as error:
            reason = shortened(str(error), 200)
            raise DataError(f"{masked(url)} is not a URL: {reason}.\nCorrect the address.") from error
        except (HTTPError, OSError, http.client.HTTPException) as error:
            if (untrusted := _UNTRUSTED.search(str(error))) is not None:
                raise DataError(
                    f"{masked(url)}: its certificate is not trusted: {shortened(untrusted[1], 200)}.\n"
                    "Correct the address, or set SSL_CERT_FILE to the file with your site's CA certificates."
                ) from error
            if isinstance(error, ReadTimeoutError):
                raise CutShort(f"the server {silence}") from error
            original = error.original_error if isinstance(error, ProxyError) else error
            name = "" if isinstance(original, HTTPError) else f"{type(original).__name__}: "
            raise CutShort(shortened(f"{name}{original}", 200)) from error


def connections_to(url: str) -> PoolManager:
    """A manager of connections to the server of a URL, or to the proxy that the environment gives for it.

    Raises:
        ProxySchemeUnknown: what the environment gives is not the address of an http(s) proxy.
    """
    target = parse_url(url)
    proxy = urllib.request.getproxies().get(target.scheme or "")
    if not proxy or urllib.request.proxy_bypass(target.netloc or ""):
        return PoolManager(num_pools=1)
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    try:
        head = make_headers(proxy_basic_auth=unquote(parse_url(proxy).auth or ""))
        return ProxyManager(proxy, proxy_headers=head)
    except LocationValueError:  # its text may contain a part of the password
        raise ProxySchemeUnknown(None) from None


def _encoding(answer: Any) -> str:
    """Its Content-Encoding; empty if the bytes are sent as they are."""
    encoding: str = answer.headers.get("Content-Encoding", "").strip().lower()
    return "" if encoding == "identity" else encoding


def _validator(answer: Any) -> str | None:
    """The validator for If-Range: a strong ETag, otherwise the date."""
    etag = validator_of(answer.headers.get("ETag"))
    if etag and not etag.startswith("W/"):
        return etag
    return validator_of(answer.headers.get("Last-Modified"))
