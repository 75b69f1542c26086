"""A location of files: a path, or `s3://bucket/key` with the options of the S3 client."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from clustertrain.errors import JobError

RETRY_S = 600.0
DOWNLOAD_TIMEOUT_S = 86_400.0
# The places in which boto3 looks for credentials, in this order; for messages.
CREDENTIAL_CHAIN = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or `profile`, ~/.aws/credentials, "
    "or the role of the machine or pod"
)


@dataclass(frozen=True)
class Location:
    """A URI and the options of the S3 client. It never contains credentials: boto3's chain provides them.

    Attributes:
        uri: a path, `file://…` or `s3://bucket/prefix`; sources also know `http(s)://…`.
        endpoint: address of an S3 server other than Amazon's.
        region: of the bucket.
        profile: of the AWS configuration files.
        addressing: "path" (http://host/bucket/key), "virtual" (http://bucket.host/key) or "auto".
        retry_s: how long transient errors of the server or the network are retried.
        timeout_s: how long a download from a web server may take in all.
    """

    uri: str
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    addressing: str = "auto"
    retry_s: float = RETRY_S
    timeout_s: float = DOWNLOAD_TIMEOUT_S

    @property
    def is_http(self) -> bool:
        return self.uri.lower().startswith(("http://", "https://"))

    @property
    def is_s3(self) -> bool:
        return self.uri.lower().startswith("s3://")

    def with_patience(self, retry_s: float) -> Location:
        """Return the same location; transient errors are retried for at most `retry_s` seconds."""
        return replace(self, retry_s=min(retry_s, self.retry_s))

    @property
    def bucket_and_key(self) -> tuple[str, str]:
        """`s3://bucket/a/b` → ("bucket", "a/b"); no slash at either end of the key."""
        bucket, _, key = self.uri[len("s3://") :].partition("/")
        return bucket, key.strip("/")


def local_path(uri: str, *, what: str) -> Path:
    """Return the path of a plain path or a `file://` URI; `what` names its purpose in the error message.

    Raises:
        JobError: another scheme.
    """
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", uri)
    if match is None:
        return Path(uri)
    scheme, parts = match[1].lower(), urlsplit(uri)
    if scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return Path(unquote(parts.path))
    raise JobError(f"{scheme}:// is not supported for {what}.\nGive a path that every node sees, or s3://…")
