"""The sections `data` and `storage` of a job file: locations on a file system, on S3 or on the web."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, StrictBool, model_validator

from clustertrain.job.sections import Section
from clustertrain.job.values import (
    DataUri,
    Endpoint,
    Refused,
    Seconds,
    Sha256,
    StorageUri,
    Text,
    refuse_secret_keys,
)
from clustertrain.node.units import shortened
from clustertrain.storage.location import DOWNLOAD_TIMEOUT_S, RETRY_S, Location

Addressing = Literal["auto", "path", "virtual"]


class _Place(Section):
    """A location. Its S3 options are refused for other URIs; keys that name a secret are always refused."""

    uri: str

    @model_validator(mode="before")
    @classmethod
    def _no_secrets(cls, data: Any) -> Any:
        refuse_secret_keys(data)
        return data

    @model_validator(mode="after")
    def _s3_options_are_for_s3(self) -> Self:
        for key in ("endpoint", "region", "profile", "addressing"):
            is_given = getattr(self, key) != type(self).model_fields[key].default
            if is_given and not self.uri.startswith("s3://"):
                raise Refused(
                    f"is given for {shortened(self.uri)}, which is not on S3\n"
                    "endpoint, region, profile and addressing are only for s3://bucket/…: remove it",
                    key,
                )
        return self


class DataEntry(_Place):
    """A data set. It is staged before the training starts; the workers find its path under its name."""

    uri: DataUri
    """Its source: a path (relative to the job file), `file:///…`, `https://…`, `http://…` or
    `s3://bucket/key`. Credentials come from the environment, never from the job file."""

    sha256: Sha256 | None = None
    """The checksum of the file, 64 hexadecimal digits. The file is verified against it. With a checksum, the
    URI may change without making it another run."""

    extract: StrictBool = False
    """Unpack the archive (zip or tar); the path is then that of the folder."""

    per: Literal["cluster", "node"] = "cluster"
    """One copy in the storage for all nodes, or one on the disk of every node."""

    timeout_s: Seconds = Field(default=DOWNLOAD_TIMEOUT_S, alias="timeout")
    """How long the download from a web server (`http(s)://`) may take in all. A server that sends
    nothing for a minute is given up earlier."""

    endpoint: Endpoint | None = None
    """Address of an S3 server other than Amazon's. Without it and the three keys below, an `s3://…` entry
    uses those of the job's storage."""

    region: Text | None = None
    """Region of the S3 bucket."""

    profile: Text | None = None
    """Profile of the AWS configuration files to use."""

    addressing: Addressing | None = None
    """Where a request contains the bucket: `path` (http://host/bucket/key), `virtual` (http://bucket.host/key)
    or `auto` (the default)."""

    @property
    def location(self) -> Location:
        """The location by this entry only; `Job.data_location` also uses the options of the storage."""
        return Location(
            self.uri,
            self.endpoint,
            self.region,
            self.profile,
            self.addressing or "auto",
            timeout_s=self.timeout_s,
        )

    @model_validator(mode="after")
    def _timeout_is_for_the_web(self) -> Self:
        if self.timeout_s != DOWNLOAD_TIMEOUT_S and not self.location.is_http:
            raise Refused(
                f"is given for {shortened(self.uri)}, which is not on a web server\n"
                "timeout is only for http(s)://…: remove it",
                "timeout",
            )
        return self


class Storage(_Place):
    """Where runs are stored: a path that every node sees, or S3."""

    uri: StorageUri
    """A path (relative to the job file) or `s3://bucket/prefix`."""

    endpoint: Endpoint | None = None
    """Address of an S3 server other than Amazon's."""

    region: Text | None = None
    """Region of the S3 bucket."""

    profile: Text | None = None
    """Profile of the AWS configuration files to use."""

    addressing: Addressing = "auto"
    """Where a request contains the bucket: `path` (http://host/bucket/key), `virtual` (http://bucket.host/key)
    or `auto`: `path` with an `endpoint`, `virtual` on Amazon S3."""

    retry_s: Seconds = Field(default=RETRY_S, alias="retry")
    """How long transient errors of the S3 server or the network (5xx, 429, a broken connection) are
    retried."""

    @property
    def location(self) -> Location:
        """The argument of `open_store`."""
        return Location(self.uri, self.endpoint, self.region, self.profile, self.addressing, self.retry_s)
