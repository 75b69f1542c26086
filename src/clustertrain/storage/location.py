"""Where bytes are: a path, or `s3://bucket/key` with what is needed to reach that server."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from clustertrain.errors import JobError

RETRY_S = 600.0
# Where boto3 looks for credentials, in this order; for messages.
CREDENTIAL_CHAIN = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or `profile`, ~/.aws/credentials, "
    "or the role of the machine or pod"
)


@dataclass(frozen=True)
class Location:
    """A URI and how to reach it. Credentials are never part of it: they come from boto3's own chain.

    Attributes:
        uri: a path, `file://…` or `s3://bucket/prefix`; sources also know `http(s)://…`.
        endpoint: address of an S3 server other than Amazon's.
        region: of the bucket.
        profile: of the AWS configuration files.
        addressing: "path" (http://host/bucket/key), "virtual" (http://bucket.host/key) or "auto".
        retry_s: how long a fault of the server or the network that may pass is met with another try.
    """

    uri: str
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    addressing: str = "auto"
    retry_s: float = RETRY_S

    @property
    def is_s3(self) -> bool:
        return self.uri.lower().startswith("s3://")

    def with_patience(self, retry_s: float) -> Location:
        """The same place; a fault that may pass is met for so many seconds at most."""
        return replace(self, retry_s=min(retry_s, self.retry_s))

    @property
    def bucket_and_key(self) -> tuple[str, str]:
        """`s3://bucket/a/b` → ("bucket", "a/b"); no slash at either end of the key."""
        bucket, _, key = self.uri[len("s3://") :].partition("/")
        return bucket, key.strip("/")


def local_path(uri: str, *, what: str) -> Path:
    """The path that a plain path or a `file://` URI names; `what` it is for stands in the error.

    Raises:
        JobError: another scheme.
    """
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", uri)
    if match is None:
        return Path(uri)
    scheme, parts = match[1].lower(), urlsplit(uri)
    if scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return Path(unquote(parts.path))
    raise JobError(
        f"{scheme}:// is no {what} that clustertrain knows.\nGive a path that every node sees, or s3://…"
    )
