"""The S3 client: one for each location of a process, and the classification of its errors.

Transient errors (5xx, 429, a broken connection, a timeout) are retried with growing pauses for
`Location.retry_s`; boto3's own retries count tries, not time, and give up after seconds, so they are off
where a caller retries. A permanent error becomes a StorageError that names the action, the key, the HTTP
status and what the server says.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
)
from botocore.exceptions import ConnectionError as NotConnected

from clustertrain.errors import StorageError
from clustertrain.node.units import shortened
from clustertrain.storage.location import CREDENTIAL_CHAIN, Location

_T = TypeVar("_T")

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 20.0

_LOOK = (
    "Compare bucket, endpoint (AWS_ENDPOINT_URL, AWS_CA_BUNDLE) and region with the server's, and what these "
    f"credentials may do: boto3 takes them from {CREDENTIAL_CHAIN}; never from the job file."
)

# Transient 4xx.
_PASSING_STATUS = {408, 425, 429}
_PASSING_CODES = {
    *("BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody", "RequestTimeout"),  # a fault in transfer
    *("ConditionalRequestConflict", "OperationAborted"),  # to one of two concurrent conditional writes
    *("SlowDown", "Throttling", "IDPCommunicationError"),  # the last two: of STS, for the role of a pod
}

# Of credentials that are no longer valid; a HEAD gets no reason.
_EXPIRED = {"400", "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
_EXPIRED |= {"InvalidAccessKeyId", "InvalidToken"}


def connect(location: Location, tries: int = 1) -> Any:
    """Return the boto3 client for a location: one per server and process, shared by its threads.

    It sends a request up to `tries` times.

    Raises:
        StorageError: the profile does not exist.
    """
    # By pid, because a forked child must not use the connections of its parent.
    server = (location.endpoint, location.region, location.profile, location.addressing)
    return _client(server, tries, os.getpid())


@cache
def _client(server: tuple[str | None, ...], tries: int, pid: int) -> Any:
    import boto3
    from botocore.config import Config

    endpoint, region, profile, addressing = server
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"total_max_attempts": tries, "mode": "standard"},
        max_pool_connections=16,
        s3={"addressing_style": addressing},
        # Some servers refuse the checksums that clients add by default; here are Content-MD5 and sha256.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent_extra="clustertrain",
    )
    try:
        session = boto3.session.Session(profile_name=profile, region_name=region)
        return session.client("s3", endpoint_url=endpoint, config=config)
    except (BotoCoreError, ValueError, OSError) as error:
        where = endpoint or "S3"
        reason = str(error).rstrip(".")
        raise StorageError(f"{where} cannot be reached: {reason}.\n{_LOOK}") from error


def with_new_credentials(request: Callable[[], _T]) -> _T:
    """Send a request and, if its credentials have expired, send it again with the current ones.

    boto3 renews the credentials of roles. It reads ~/.aws/credentials once, and a run may last longer than
    the credentials in that file are valid.
    """
    try:
        return request()
    except ClientError as error:
        if code_of(error) not in _EXPIRED:
            raise
    _client.cache_clear()
    return request()


def persistently(
    location: Location,
    action: str,
    key: str,
    request: Callable[[], _T],
    *,
    answers: Collection[int] = (),
    pause: Callable[[float], None] | None = None,
) -> _T:
    """Send a request and return its answer; transient errors are retried for `retry_s`.

    Args:
        action: the action for messages: "PUT", "GET", "LIST".
        key: the full key in the bucket.
        answers: HTTP statuses that the caller handles as an answer, not as an error.
        pause: waits the given number of seconds, by default time.sleep; an exception of it ends the retries.

    Raises:
        botocore.exceptions.ClientError: with one of the statuses in `answers`.
        StorageError: any other error.
    """
    ends, pause_s = time.monotonic() + location.retry_s, FIRST_PAUSE_S
    while True:
        try:
            return with_new_credentials(request)
        except Exception as error:
            if http_status_of(error) in answers and code_of(error) != "NoSuchBucket":
                raise
            left_s = ends - time.monotonic()
            if left_s <= 0 or not is_transient(error):
                raise explained(location, action, key, error) from error
            # Jitter, so that a thousand workers do not retry at the same time.
            (pause or time.sleep)(min(left_s, pause_s * random.uniform(0.5, 1.0)))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def http_status_of(error: BaseException) -> int:
    """Return the HTTP status of botocore's ClientError, or 0 for anything else."""
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"]) if isinstance(error, ClientError) else 0


def code_of(error: BaseException) -> str:
    """Return S3's name of an error, such as "NoSuchKey", or "" if it has none."""
    return shortened(error.response["Error"].get("Code", "")) if isinstance(error, ClientError) else ""


def value_text(error: BaseException) -> str:
    """Return an error for a message, on one line: `HTTP 503 SlowDown`, `TimeoutError: timed out`."""
    if isinstance(error, ClientError):
        return f"HTTP {http_status_of(error)} {code_of(error)}".rstrip()
    return f"{type(error).__name__}: {shortened(str(error).partition(chr(10))[0], 200)}".rstrip(": ")


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later."""
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    if isinstance(error, ClientError):
        status = http_status_of(error)
        server_fault = status >= 500 and status not in (501, 507)  # not implemented; a full storage
        return server_fault or status in _PASSING_STATUS or code_of(error) in _PASSING_CODES
    # A cut answer fails in the parser; the last two are Python's errors of reading a body.
    broken = (NotConnected, HTTPClientError, HTTPError, IncompleteReadError, ResponseParserError)
    return isinstance(error, (*broken, ConnectionError, TimeoutError))


def explained(location: Location, action: str, key: str, error: BaseException) -> StorageError:
    """Return the StorageError for a request that failed permanently, or whose time of retries is over."""
    at = f" at {location.endpoint}" if location.endpoint else ""
    what = f"{action} s3://{location.bucket_and_key[0]}/{key}{at}"
    if is_transient(error):
        return StorageError(
            f"{what} did not succeed in {location.retry_s:g} s of retries; "
            f"the last error was: {value_text(error)}.\n"
            "Is the server up and its certificate trusted here (AWS_CA_BUNDLE)? "
            "Stored files were not changed; run again to continue."
        )
    if isinstance(error, ClientError):
        code = code_of(error)
        message = shortened(error.response["Error"].get("Message", ""), 200).rstrip(".")
        details = f" ({message})" if message and message != code else ""
        return StorageError(f"{what} was refused: {value_text(error)}{details}.\n{_LOOK}")
    # No credentials, an incomplete profile, an unknown certificate; a token's file that cannot be read.
    if isinstance(error, BotoCoreError | OSError):
        reason = shortened(str(error), 200).rstrip(".")
        return StorageError(f"{what} was not sent: {reason}.\n{_LOOK}")
    raise error  # not an error of the storage: a bug
