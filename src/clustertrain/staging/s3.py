"""An object on S3, which boto3 downloads in several parts at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from boto3.exceptions import RetriesExceededError
from botocore.exceptions import BotoCoreError, ClientError
from s3transfer.exceptions import S3DownloadFailedError

from clustertrain.errors import DataError
from clustertrain.staging.part import Download
from clustertrain.staging.source import CutShort
from clustertrain.storage.location import Location
from clustertrain.storage.s3_client import connect, explained, is_transient, value_text, with_new_credentials

_TRIES = 5  # of a request of one part; then the object begins anew


def receive(location: Location, part: Download) -> None:
    """Receive an object.

    Raises:
        CutShort: a transient error.
        DataError: a permanent error: there is no such object, or access is refused.
        StorageError: it does not fit on the disk.
    """
    bucket, key = location.bucket_and_key
    if not key or location.uri.endswith("/"):
        raise DataError(
            f"{location.uri} is a prefix, not an object; a data set on S3 is one object.\n"
            "Pack them into one archive (tar) and set extract: true, or give the key of one object."
        )
    with explained_errors(location):
        # For the length, and the reason of a refusal, which the answer to a HEAD would not have.
        whole = with_new_credentials(partial(connect(location).get_object, Bucket=bucket, Key=key))
        whole["Body"].close()
        part.begin(None, whole["ContentLength"])
        client = connect(location, _TRIES)
        client.download_file(bucket, key, str(part.first), Callback=part.count)
    part.end()


@contextmanager
def explained_errors(location: Location) -> Iterator[None]:
    """Turn the errors of boto3 into CutShort and DataError."""
    try:
        yield
    except Exception as error:
        cause = error.last_exception if isinstance(error, RetriesExceededError) else error
        if is_transient(cause) or isinstance(error, S3DownloadFailedError):  # the latter: it has changed
            raise CutShort(value_text(cause)) from error
        if isinstance(error, ClientError | BotoCoreError):
            raise DataError(str(explained(location, "GET", location.bucket_and_key[1], error))) from error
        raise
