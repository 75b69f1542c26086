"""The sections of a job file that say where bytes are: `data` and `storage`."""

from __future__ import annotations

from typing import Any, Literal

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
from clustertrain.storage.location import RETRY_S, Location
from clustertrain.units import shortened

Addressing = Literal["auto", "path", "virtual"]
_S3_OPTIONS = ("endpoint", "region", "profile", "addressing")


class _Place(Section):
    """Where bytes are. Its keys for S3 are refused beside anything else, and those of a secret always."""

    uri: str

    @model_validator(mode="before")
    @classmethod
    def _no_secrets(cls, data: Any) -> Any:
        refuse_secret_keys(data)
        return data

    def _only_for_s3(self, *keys: str) -> None:
        for key in keys:
            if (
                not self.uri.startswith("s3://")
                and getattr(self, key) != type(self).model_fields[key].default
            ):
                raise Refused(
                    f"stands beside {shortened(self.uri)}, which is not on S3\n"
                    f"{', '.join(keys[:-1])} and {keys[-1]} are for s3://bucket/… alone: leave it out",
                    key,
                )


class DataEntry(_Place):
    """A data set, brought to the workers before training starts; its path there is found under its name."""

    uri: DataUri
    """Where it is: a path (relative to the job file), `file:///…`, `https://…`, `http://…` or
    `s3://bucket/key`. Credentials come from the environment, never from here."""

    sha256: Sha256 | None = None
    """The checksum of the file, 64 hexadecimal digits. With it the file is verified, and may move to
    another URI without becoming another run."""

    extract: StrictBool = False
    """Unpack the archive (zip or tar) and give the folder instead of the file."""

    per: Literal["cluster", "node"] = "cluster"
    """Keep one copy in storage that all nodes read, or one on the disk of every node."""

    endpoint: Endpoint | None = None
    """Address of an S3 server other than Amazon's. An `s3://…` entry that has none of `endpoint`, `region`,
    `profile` and `addressing` is reached like the job's storage, where that is on S3, too."""

    region: Text | None = None
    """Region of the S3 bucket."""

    profile: Text | None = None
    """Profile of the AWS configuration files to use."""

    addressing: Addressing | None = None
    """How the bucket stands in a request: `path` (http://host/bucket/key), `virtual` (http://bucket.host/key)
    or `auto`, which it is when left out."""

    @property
    def location(self) -> Location:
        """As this entry alone says it; `Job.data_location` knows the storage, too."""
        return Location(self.uri, self.endpoint, self.region, self.profile, self.addressing or "auto")

    @model_validator(mode="after")
    def _options_are_for_s3(self) -> DataEntry:
        self._only_for_s3(*_S3_OPTIONS)
        return self


class Storage(_Place):
    """Where runs are kept: a path that every node sees, or S3."""

    uri: StorageUri
    """A path (relative to the job file) or `s3://bucket/prefix`."""

    endpoint: Endpoint | None = None
    """Address of an S3 server other than Amazon's."""

    region: Text | None = None
    """Region of the S3 bucket."""

    profile: Text | None = None
    """Profile of the AWS configuration files to use."""

    addressing: Addressing = "auto"
    """How the bucket stands in a request: `path` (http://host/bucket/key), `virtual` (http://bucket.host/key)
    or `auto`: `path` at an `endpoint`, `virtual` at Amazon's."""

    retry_s: Seconds = Field(default=RETRY_S, alias="retry")
    """How long a fault of the S3 server or the network that may pass (5xx, 429, a broken connection) is met
    with another try."""

    @property
    def location(self) -> Location:
        """What `open_store` takes."""
        return Location(self.uri, self.endpoint, self.region, self.profile, self.addressing, self.retry_s)

    @model_validator(mode="after")
    def _options_are_for_s3(self) -> Storage:
        self._only_for_s3(*_S3_OPTIONS)
        return self
