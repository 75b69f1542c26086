"""A small file that holds one record, a frozen dataclass; and the check of JSON against such a class.

A file is JSON with `format_version` and the fields of its record. Files without that key are of version
1. A field that the record does not have is ignored; one that is missing or of another type is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from clustertrain.errors import StorageError
from clustertrain.node.units import LARGEST_INTEGER, LATEST_S, shortened
from clustertrain.node.version import __version__
from clustertrain.storage import Store

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter

FORMAT_VERSION = 1
_TIMES = {"time", "ended_at", "train_s", "train_started", "train_ended", "written_at"}

T = TypeVar("T", bound="DataclassInstance")


@dataclass(frozen=True)
class RecordFile(Generic[T]):
    """The file at `key`, which contains a `kind`. Every method raises StorageError if the storage refuses."""

    store: Store
    key: str
    kind: type[T]

    @property
    def uri(self) -> str:
        return self.store.uri(self.key)

    def exists(self) -> bool:
        return self.store.read_or_none(self.key) is not None

    def read(self) -> T | None:
        """Return the record, or None if there is no file.

        Raises:
            StorageError: the file is of a later version, or damaged.
        """
        data = self.store.read_or_none(self.key)
        return None if data is None else decoded(self.kind, data, self.uri)

    def write(self, record: T) -> None:
        """Write or replace the file."""
        self.store.write_atomic(self.key, encoded(record))

    def create(self, record: T) -> bool:
        """Write the file if it does not exist; returns False if it exists."""
        return self.store.create_exclusive(self.key, encoded(record))


@dataclass(frozen=True)
class RequestFile(RecordFile[T]):
    """A request to a run.

    Any process that can access the storage can make it. It is written to this node's spool first, so that the
    ranks of this node find it even while S3 is down.
    """

    spool: Store

    def read(self) -> T | None:
        """Return the newest request, or None."""
        data = self.spool.read_or_none(self.key)
        if data is not None:
            return decoded(self.kind, data, self.spool.uri(self.key))
        return super().read() if self.store is not self.spool else None

    def write(self, record: T) -> None:
        """Make the request.

        Raises:
            StorageError: the storage refused it; the ranks of other nodes do not find it.
        """
        self.spool.write_atomic(self.key, encoded(record))
        if self.store is not self.spool:
            super().write(record)


def encoded(record: DataclassInstance) -> bytes:
    """Return the bytes of a record's file."""
    value = {"format_version": FORMAT_VERSION, **asdict(record)}
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def decoded(kind: type[T], data: bytes, where: str) -> T:
    """Return the record that `encoded` wrote; `where` names the file in errors.

    Raises:
        StorageError: it is of a later version, or not such a record.
    """
    try:
        value = json_object(data)
        version = value.get("format_version", FORMAT_VERSION)
        if not isinstance(version, int) or version < 1:
            raise ValueError(f"format_version is {version!r}, not a positive whole number")
        if version > FORMAT_VERSION:
            raise StorageError(
                f"{where} has format {version}, and clustertrain {__version__} reads up to "
                f"{FORMAT_VERSION}.\nA later version of clustertrain wrote it: use that version here, too."
            )
        return typed(kind, value)
    except ValueError as error:
        raise StorageError(
            f"{where} is damaged: {error}.\n"
            "clustertrain writes the whole file or nothing, so another program changed it. "
            "Restore or remove it."
        ) from None


def json_object(data: bytes) -> dict[str, Any]:
    """Return the object that JSON contains; its integers fit into 64 bits.

    Raises:
        ValueError: it is not JSON, or not an object.
    """
    try:
        value = json.loads(data, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"it contains {type(value).__name__}, not an object")
    return value


def typed(kind: type[T], value: dict[str, Any]) -> T:
    """Return the record with the fields of a JSON object, after a check of their types.

    Raises:
        ValueError: a field is missing or of another type, or a time is out of range; names the field.
    """
    from pydantic import ValidationError  # here, because a save on a machine with torch alone reads nothing

    for key in _TIMES & value.keys():
        if isinstance(value[key], int | float) and not 0 <= value[key] <= LATEST_S:
            raise ValueError(f"{key} is {value[key]}, not a time in seconds")
    # Half of a surrogate pair, as in a file name that is not UTF-8, is valid JSON but cannot be encoded.
    text = json.dumps(value, ensure_ascii=False).encode(errors="replace")
    try:
        record: T = _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise ValueError(f"{at}: {first['msg']}" if at else first["msg"]) from None
    return record


def _whole(digits: str) -> int:
    if len(digits) > 20 or abs(value := int(digits)) > LARGEST_INTEGER:
        raise ValueError(f"{shortened(digits)} does not fit into 64 bits")
    return value


@cache
def _adapter(kind: type[DataclassInstance]) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
