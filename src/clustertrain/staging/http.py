"""A file of a web server as a source: `http://` or `https://`, opened at any byte of a known version.

urllib3 makes the connections. Redirects are followed here, because each address may have another proxy.
"""

from __future__ import annotations

import gzip
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
from urllib3.exceptions import HTTPError, LocationValueError, ProxySchemeUnknown
from urllib3.util import parse_url

from clustertrain.errors import DataError
from clustertrain.staging.source import CHUNK_BYTES, CutShort, NotThatRange, Source, Stream, masked
from clustertrain.units import shortened

ANSWER_S = 20.0  # for a connection, and then for each byte
_PASSING_STATUSES = {408, 425, 429, *range(500, 600)} - {501, 505}  # Cloudflare has 520 to 530
_MOST_REDIRECTS = 10
_COMPRESSED_NAME = re.compile(r"\.(gz|tgz|z|svgz)$", re.IGNORECASE)
_UNTRUSTED = re.compile(r"certificate verify failed: ([^(]*[^(\s.])")
_YOURSELF = "Download it yourself, and use its path as the URI."


@dataclass(frozen=True)
class HttpSource(Source):
    """A file of a web server; proxies are taken from the environment (`https_proxy`, `no_proxy`)."""

    url: str
    timeout_s: float

    def read_range(self, offset: int, end: int, validator: str | None) -> Stream:
        requested = f"{offset}-{end - 1}"
        headers = {} if validator is None else {"Range": f"bytes={requested}", "If-Range": validator}
        answer = self._get(headers)
        sent = answer.headers
        etag, encoding = sent.get("ETag", ""), sent.get("Content-Encoding", "").strip().lower()
        version = etag if etag.startswith('"') else sent.get("Last-Modified")
        if encoding == "identity" or _COMPRESSED_NAME.search(urlsplit(self.url).path):
            encoding = ""  # Apache names one for a tar.gz
        if validator is not None:
            is_that = answer.status == 206 and sent.get("Content-Range", "").startswith(f"bytes {requested}/")
            if encoding or not is_that or version not in (None, validator):
                answer.close()
                raise NotThatRange("the server sent another range than the requested one, or another version")
            return Stream(self._blocks(answer), answer.close, None, validator)
        total_bytes = answer.length_remaining
        if total_bytes is None and not answer.chunked:
            raise self._refusal(answer, "the server sends no length, so a cut could not be detected")
        if encoding not in ("", "gzip", "x-gzip"):
            what = f"the server sends it in the encoding {shortened(encoding)!r}, although none was requested"
            raise self._refusal(answer, what)
        if encoding:  # its length is that of the encoded bytes
            return Stream(self._blocks(gzip.GzipFile(fileobj=answer)), answer.close, None, None)
        has_ranges = sent.get("Accept-Ranges", "").lower() == "bytes"
        known = None if total_bytes is None else version
        return Stream(self._blocks(answer), answer.close, total_bytes, known, has_ranges)

    def _blocks(self, body: Any) -> Iterator[bytes]:
        with self._explained(self.url):
            while data := body.read1(CHUNK_BYTES):
                yield data

    def _get(self, headers: dict[str, str]) -> Any:
        """The answer after any redirects."""
        url = self.url
        fixed = {"User-Agent": "clustertrain", "Accept-Encoding": "identity", "Connection": "close"}
        for _ in range(_MOST_REDIRECTS):
            with self._explained(url):
                encoded = parse_url(url)._replace(fragment=None).url
                answer = connections_to(encoded).request(
                    "GET",
                    encoded,
                    headers={**fixed, **headers},
                    timeout=ANSWER_S,
                    preload_content=False,
                    decode_content=False,
                    enforce_content_length=False,  # the caller counts, and resumes
                    redirect=False,
                    retries=False,
                )
            if answer.status in (200, 203) or (headers and answer.status in (206, 416)):
                return answer
            if not (to := answer.get_redirect_location()):
                raise self._failure(answer)
            with self._explained(to):
                answer.close()
                was_https, url = url.lower().startswith("https:"), urljoin(url, to)
            if not url.startswith("https:" if was_https else ("https:", "http:")):
                what = f"it redirects to {shortened(masked(url), 200)}, which is no http(s) address"
                raise self._refusal(answer, f"{what}, or less secure")
        raise self._refusal(answer, f"more than {_MOST_REDIRECTS} redirects, the last one to {masked(url)}")

    def _failure(self, answer: Any) -> Exception:
        """The error for an answer with neither the file nor the requested range."""
        message = f"HTTP {answer.status} {shortened(answer.reason or '')}".rstrip()
        if answer.status not in _PASSING_STATUSES:
            remedy = _YOURSELF if answer.status in (401, 403) else "Correct the address."
            return self._refusal(answer, message, remedy)
        answer.close()
        after = answer.headers.get("Retry-After", "")
        return CutShort(message, retry_after_s=float(after) if after.isdecimal() else 0.0)

    def _refusal(self, answer: Any, what: str, remedy: str = _YOURSELF) -> DataError:
        answer.close()
        return DataError(f"{masked(self.url)} cannot be fetched: {what}.\n{remedy}")

    @contextmanager
    def _explained(self, url: str) -> Iterator[None]:
        """Turns the errors of a request into CutShort and DataError."""
        try:
            yield
        except ProxySchemeUnknown as error:
            raise DataError(
                f"{urlsplit(url).scheme}_proxy in the environment is not the address of an http(s) proxy.\n"
                "Correct it (http://host:port, with a password percent-encoded), or unset it."
            ) from error
        except ValueError as error:
            reason = shortened(str(error), 200)
            raise DataError(f"{masked(url)} is not a URL: {reason}.\nCorrect the address.") from error
        except (HTTPError, OSError, http.client.HTTPException, EOFError, zlib.error) as error:
            if (untrusted := _UNTRUSTED.search(str(error))) is not None:
                raise DataError(
                    f"{masked(url)}: its certificate is not trusted: {shortened(untrusted[1], 200)}.\n"
                    "Correct the address, or set SSL_CERT_FILE to the file with your site's CA certificates."
                ) from error
            raise CutShort(shortened(f"{type(error).__name__}: {error}", 200)) from error


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
