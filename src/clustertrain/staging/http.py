"""A file of a web server: `http://` or `https://`.

urllib3 makes the connections. Redirects are followed here, because each address may have another proxy.
"""

from __future__ import annotations

import gzip
import http.client
import re
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from urllib3 import PoolManager, ProxyManager, make_headers
from urllib3.exceptions import HTTPError, LocationValueError, ProxySchemeUnknown
from urllib3.util import parse_url

from clustertrain.errors import DataError, JobError
from clustertrain.node.units import shortened
from clustertrain.staging.part import Part
from clustertrain.staging.source import CHUNK_BYTES, CutShort, masked

ANSWER_S = 20.0  # for a connection, and then for each byte
_PASSING_STATUSES = {408, 425, 429, *range(500, 600)} - {501, 505}  # Cloudflare has 520 to 530
_MOST_REDIRECTS = 10
_COMPRESSED_NAME = re.compile(r"\.(gz|tgz|z|svgz)$", re.IGNORECASE)


def receive(url: str, part: Part) -> None:
    """Receive a file, or the rest of it if the server has still the version of which there is a part.

    Raises:
        CutShort: a transient error.
        DataError: a permanent error: the file does not exist or access is refused.
        JobError: there are credentials in the URL.
        StorageError: it does not fit on the disk.
    """
    with closing(get(url, part.validator, part.received_bytes)) as answer:
        if answer.status == 200:
            part.begin(*version_of(url, answer))
        elif is_rest(answer, part.validator, part.received_bytes):
            part.total_bytes = part.received_bytes + answer.length_remaining
        else:
            part.begin(None, None)
            raise CutShort("the server sent another range than the requested one, or another version")
        part.append(blocks_of(url, answer))


def get(url: str, validator: str | None, offset: int) -> Any:
    """Return the answer after any redirects: whole, or from `offset` on if the file is still `validator`."""
    if "@" in urlsplit(url).netloc:
        raise JobError(
            f"{masked(url)} contains credentials.\nRemove them: a URI ends up in logs and records."
        )
    here = url
    headers = {"User-Agent": "clustertrain", "Accept-Encoding": "identity", "Connection": "close"}
    if validator is not None:
        headers |= {"Range": f"bytes={offset}-", "If-Range": validator}
    for _ in range(_MOST_REDIRECTS):
        with _explained(here):
            encoded = parse_url(here)._replace(fragment=None).url
            answer = _connections_to(encoded).request(
                "GET",
                encoded,
                headers=headers,
                timeout=ANSWER_S,
                preload_content=False,
                decode_content=False,
                enforce_content_length=False,  # the caller counts, and resumes
                redirect=False,
                retries=False,
            )
        if answer.status == 200 or (validator is not None and answer.status in (206, 416)):
            return answer
        answer.close()
        if not (to := answer.get_redirect_location()):
            raise _failure(url, answer)
        with _explained(to):
            here = urljoin(here, to)
    raise _refusal(url, f"more than {_MOST_REDIRECTS} redirects, the last one to {masked(here)}")


def is_rest(answer: Any, validator: str | None, offset: int) -> bool:
    """Return whether an answer has the bytes from `offset` of that version."""
    is_range = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {offset}-")
    return is_range and answer.length_remaining is not None and _validator(answer) in (None, validator)


def version_of(url: str, answer: Any) -> tuple[str | None, int | None]:
    """Return the version and the length of a whole file; an encoding has neither, but it has an end.

    Raises:
        DataError: it has an encoding that is not known, or no end.
    """
    if answer.length_remaining is None and not answer.chunked:
        raise _refusal(url, "the server sends no length, so a cut could not be detected")
    if (encoding := _encoding(url, answer)) not in ("", "gzip", "x-gzip"):
        what = f"the server sends it in the encoding {shortened(encoding)!r}, although none was requested"
        raise _refusal(url, what)
    if encoding or answer.length_remaining is None:
        return None, None
    return _validator(answer), answer.length_remaining


def blocks_of(url: str, answer: Any) -> Iterator[bytes]:
    """Yield the bytes of an answer, each block as soon as it has arrived."""
    # urllib3's own decoder does not notice the end of a stream that was cut.
    body = gzip.GzipFile(fileobj=answer) if _encoding(url, answer) else answer
    with _explained(url):
        while data := body.read1(CHUNK_BYTES):
            yield data


def _validator(answer: Any) -> str | None:
    etag: str = answer.headers.get("ETag", "")
    date: str | None = answer.headers.get("Last-Modified")
    return etag if etag.startswith('"') else date


def _encoding(url: str, answer: Any) -> str:
    encoding = answer.headers.get("Content-Encoding", "").strip().lower()
    # Apache names one for a tar.gz
    return "" if encoding == "identity" or _COMPRESSED_NAME.search(urlsplit(url).path) else encoding


def _failure(url: str, answer: Any) -> Exception:
    """Return the error for an answer with neither the file nor the requested range."""
    message = f"HTTP {answer.status} {shortened(answer.reason or '')}".rstrip()
    return CutShort(message) if answer.status in _PASSING_STATUSES else _refusal(url, message)


def _refusal(url: str, what: str) -> DataError:
    return DataError(
        f"{masked(url)} cannot be fetched: {what}.\n"
        "Correct the address, or download it yourself, and use its path as the URI."
    )


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn the errors of a request into CutShort and DataError."""
    try:
        yield
    except ProxySchemeUnknown as error:
        raise DataError(
            f"{urlsplit(url).scheme}_proxy in the environment is not the address of an http(s) proxy.\n"
            "Correct it (http://host:port, with a password percent-encoded), or unset it."
        ) from error
    except ValueError as error:
        shown, reason = shortened(masked(url), 200), shortened(str(error), 200)
        raise DataError(f"{shown} is not a URL: {reason}.\nCorrect the address.") from error
    except (HTTPError, OSError, http.client.HTTPException, EOFError, zlib.error) as error:
        raise CutShort(shortened(f"{type(error).__name__}: {error}", 200)) from error


def _connections_to(url: str) -> PoolManager:
    """Return a manager of connections to a URL's server, or to the proxy that the environment gives for it.

    Raises:
        ProxySchemeUnknown: the environment's proxy is not the address of an http(s) proxy.
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
