"""A Store on S3, or on another server with the S3 API.

A PUT of an object is atomic, so a small file is one PUT. In place of rename and link, the order of requests
and conditional requests are used:

- a tree is its files, then its marker, put last with `If-None-Match: *`: without a marker there is no tree;
- `.newest` beside the trees names the tree that was committed last, so that a delayed listing cannot hide it;
  every name in a listing is checked by HEAD;
- a server without conditional writes is detected; there, s3_exclusive_create.py decides which writer was
  first.
"""

from __future__ import annotations

import builtins
import uuid
from collections.abc import Callable, Iterator

from clustertrain.storage.location import Location
from clustertrain.storage.posix_tree import HIDDEN, any_tree
from clustertrain.storage.s3_bucket import Bucket
from clustertrain.storage.s3_exclusive_create import create_by_contest
from clustertrain.storage.s3_tree import NEWEST, S3Tree


class S3Store:
    """Keys are below the location's prefix. Names that start with '.' belong to the store."""

    def __init__(self, location: Location) -> None:
        self._bucket = Bucket(location)
        _, self._prefix = location.bucket_and_key
        self._supports_conditions: bool | None = None

    def __repr__(self) -> str:
        return f"S3Store({self.location})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, S3Store) and other.location == self.location

    def __hash__(self) -> int:
        return hash(self.location)

    @property
    def location(self) -> Location:
        return self._bucket.location

    def uri(self, key: str) -> str:
        return f"s3://{self._bucket.name}/{self._key(key)}"

    def read_or_none(self, key: str) -> bytes | None:
        found = self._bucket.get(self._key(key))
        return None if found is None else found[0]

    def write_atomic(self, key: str, data: bytes) -> None:
        self._bucket.put(self._key(key), data)

    def create_exclusive(self, key: str, data: bytes) -> bool:
        return self._create(self._key(key), data)

    def remove(self, key: str) -> None:
        self._bucket.delete(self._key(key))

    def size_or_none(self, key: str) -> int | None:
        return self._bucket.size_or_none(self._key(key))

    def blocks(self, key: str, *, block_bytes: int = 1 << 20) -> Iterator[bytes]:
        return self._bucket.blocks(self._key(key), block_bytes)

    def local_folder(self, key: str) -> None:
        return None

    def new_tree(self, key: str) -> S3Tree:
        return S3Tree(self._bucket, self._key(key), self._create)

    def join_tree(self, key: str, handle: str) -> S3Tree:
        return self.new_tree(key)  # files have their final names

    def trees(self, prefix: str, marker: str) -> builtins.list[str]:
        folder = self._folder(prefix)
        newest = None
        while True:
            before = newest
            _, names = self._bucket.directly_below(folder)
            found = self._bucket.get(folder + NEWEST)
            newest = found[0].decode() if found is not None else ""
            whole = {name for name in {*names, newest} if name and self._is_whole(folder + name, marker)}
            if newest in ("", before) or newest in whole:
                return sorted(whole)
            # It was removed meanwhile, so the listing may lack the one for which it was.

    def remove_tree(self, key: str, marker: str) -> None:
        folder = self._folder(key)
        self._bucket.delete(folder + marker)
        self._remove_below(folder)

    def collect_leftovers(
        self, prefix: str, marker: str, is_over: Callable[[str], bool] = any_tree
    ) -> builtins.list[str]:
        folder = self._folder(prefix)
        _, names = self._bucket.directly_below(folder)
        leftovers = [
            name
            for name in names
            if not name.startswith(HIDDEN) and is_over(name) and not self._is_whole(folder + name, marker)
        ]
        for name in leftovers:
            self._remove_below(f"{folder}{name}/")
        for key, upload_id in self._bucket.uploads_below(folder):
            if is_over(name := key[len(folder) :].partition("/")[0]):
                self._bucket.abort_upload(key, upload_id)
                leftovers.append(name)
        return sorted(set(leftovers))

    def list(self, prefix: str) -> list[str]:
        objects, folders = self._bucket.directly_below(self._folder(prefix))
        return sorted(name for name in {*objects, *folders} if not name.startswith(HIDDEN))

    # ------------------------------------------------------------------------------------------------

    def _key(self, key: str) -> str:
        return "/".join(part for part in (self._prefix, key) if part)

    def _folder(self, prefix: str) -> str:
        key = self._key(prefix)
        return f"{key}/" if key else ""

    def _is_whole(self, tree: str, marker: str) -> bool:
        return self._bucket.exists(f"{tree}/{marker}")

    def _remove_below(self, folder: str) -> None:
        self._bucket.delete(*(key for key, _ in self._bucket.below(folder)))

    def _create(self, key: str, data: bytes) -> bool:
        if self._supports_conditions is None:
            self._supports_conditions = self._tries_conditions()
        writer = uuid.uuid4().hex
        if not self._supports_conditions:
            return create_by_contest(self._bucket, key, data, writer)
        if self._bucket.put_if_absent(key, data, writer=writer) == 200:
            return True
        # After a lost answer the PUT is repeated, and the second one finds the object of the first.
        return self._bucket.get(key) in ((data, writer), (data, ""))  # "": a server without metadata

    def _tries_conditions(self) -> bool:
        """Whether the server supports `If-None-Match: *`: a second PUT of the same key is refused."""
        scratch = self._key(f"{HIDDEN}condition-{uuid.uuid4().hex}")
        first = self._bucket.put_if_absent(scratch, b"1", writer="")
        try:
            return first != 501 and self._bucket.put_if_absent(scratch, b"2", writer="") == 412
        finally:
            self._bucket.delete(scratch)
