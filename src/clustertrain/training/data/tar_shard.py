"""One WebDataset shard: a tar whose files make samples, read from its start to its end.

`webdataset` groups the files and decodes them. Its iterators end in silence where a shard is cut between two
files; here every shard is read up to the end mark of the tar, and what is missing is an error.
"""

from __future__ import annotations

import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from clustertrain.errors import DataError, JobError

_BLOCK = b"\0" * tarfile.BLOCKSIZE
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ")  # gzip, bzip2, xz: they have checksums of their own
_META = re.compile(r"__[^/]*__($|/)")  # as webdataset skips them
_CODE = {"pkl", "pickle", "pyd", "pth"}
# What tarfile and the decompressors raise for bytes that end early or are no archive.
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, OSError)

Sample = dict[str, Any]
Opener = Callable[[str], BinaryIO]


def open_local(name: str) -> BinaryIO:
    """A local shard.

    Raises:
        JobError: it is not a local file; only a run of clustertrain reads S3 and the web.
        DataError: it cannot be opened.
    """
    if "://" in name:
        raise JobError(
            f"{shown(name)} is not a local file, and this process has no reader for {urlsplit(name).scheme}://."
            "\nA task in a run of clustertrain reads s3:// and http(s):// too; here, give a local path."
        )
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise DataError(f"The shard {name} cannot be opened: {error.strerror}.\nCorrect its path.") from error


def expanded(name: str) -> list[str]:
    """The shards that a folder, or a path or URL with braces, names.

    Raises:
        JobError: a folder without shards.
    """
    if "://" not in name and Path(name).is_dir():
        found = sorted(str(path) for path in Path(name).glob("*.tar"))
        if not found:
            raise JobError(f"The folder {name} has no file *.tar.\nCorrect the path under `data`.")
        return found
    from braceexpand import braceexpand

    return list(braceexpand(name))


def samples_of(name: str, opener: Opener) -> Iterator[Sample]:
    """The samples of a shard, in order: bytes by extension, with `__key__` and `__url__`.

    Raises:
        DataError: the shard is cut or is not a tar; names the shard and the position in bytes.
    """
    from webdataset.tariterators import group_by_keys, tar_file_iterator

    file = opener(name)
    counted = _Counted(file)

    def files() -> Iterator[Sample]:
        for each in tar_file_iterator(counted):
            yield {**each, "__url__": name}
        if counted.lacks_end():  # before the last sample is used: one of its files may be missing
            raise torn(name, counted.position, "the end mark of the tar is missing")

    try:
        yield from group_by_keys(files())
    except ValueError as error:  # two files of one name
        raise _unreadable(name, counted.position, error) from error
    except _DAMAGED as error:
        raise torn(name, counted.position, _said(error)) from error
    finally:
        file.close()


def count_samples(name: str, opener: Opener) -> int:
    """The number of samples of a shard; of a local file only the headers are read.

    Raises:
        DataError: as `samples_of`, and for a shard without a sample.
    """
    local = "://" not in name
    number = _counted_by_headers(name, opener) if local else sum(1 for _ in samples_of(name, opener))
    if number == 0:
        raise DataError(
            f"The shard {shown(name)} has no sample: no file `key.extension` in it.\nRemove the shard."
        )
    return number


def _counted_by_headers(name: str, opener: Opener) -> int:
    from webdataset.tariterators import group_by_keys

    with opener(name) as file:
        compressed = file.read(6).startswith(_COMPRESSED)
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:*") as tar:
                names = [member.name for member in tar if member.isreg() and not _META.match(member.name)]
                end = tar.offset
        except _DAMAGED as error:
            position = min(file.tell(), file.seek(0, os.SEEK_END))
            raise torn(name, position, _said(error)) from error
        if not compressed:
            file.seek(end)
            if file.read(len(_BLOCK)) != _BLOCK:
                raise torn(name, end, "the end mark of the tar is missing")
    try:
        return sum(1 for _ in group_by_keys({"fname": each, "data": b"", "__url__": name} for each in names))
    except ValueError as error:
        raise _unreadable(name, end, error) from error


class _Counted:
    """Counts the bytes that are read, and keeps the last ones."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._start = self._last = b""
        self._ended = False
        self.position = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self.position += len(data)
        self._ended = self._ended or (not data and size != 0)
        if len(self._start) < 6:
            self._start += data[:6]
        self._last = (self._last + data)[-len(_BLOCK) :]
        return data

    def lacks_end(self) -> bool:
        """Whether the file ended without the end mark of a tar: a block of zeros."""
        return self._ended and not self._start.startswith(_COMPRESSED) and self._last != _BLOCK


def decoded(sample: Sample, handlers: list[Callable[[str, bytes], Any]]) -> Sample:
    """A sample decoded by `handlers`, and by webdataset's for txt, cls, json, npy and others.

    Raises:
        DataError: it cannot be decoded; names the shard and the sample.
    """
    from webdataset.autodecode import Decoder, DecodingError

    try:
        result: Sample = Decoder([*handlers, _refuse_code])(sample)
    except DecodingError as error:
        cause = error.__cause__ or error
        raise DataError(
            f"{error.k} of sample {error.key} in {shown(str(error.url))} cannot be decoded: {_said(cause)}.\n"
            "Correct the sample, or give Shards another `decode`."
        ) from error
    return result


def _refuse_code(key: str, data: bytes) -> Any:
    """webdataset would unpickle these files, which runs code of whoever wrote them."""
    if key.rpartition(".")[2] in _CODE:
        raise ValueError("a pickle can run code, so it is not loaded; write it as npy, json or txt")
    return None


def torn(name: str, position: int, why: str) -> DataError:
    return DataError(
        f"The shard {shown(name)} is torn at byte {position}: {why}.\n"
        "No sample beyond it was used. Copy or write the shard again, and continue the run."
    )


def shown(name: str) -> str:
    """A name for messages, without the user, the password and the query of a URL."""
    if "://" not in name:
        return name
    parts = urlsplit(name)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _unreadable(name: str, position: int, error: Exception) -> DataError:
    return DataError(
        f"The shard {shown(name)} cannot be read at byte {position}: {error}.\nWrite the shard again."
    )


def _said(error: BaseException) -> str:
    text = str(error).partition("\n")[0].partition(" @ <")[0]  # webdataset adds the file object
    return f"{type(error).__name__}: {text}".rstrip(" .:")
