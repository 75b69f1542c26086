"""A Store on S3, or on another server with the S3 API.

A PUT of an object is atomic, so a small file is one PUT. In place of rename and link, the order of requests
and conditional requests are used:

- a tree is its files, then its marker, put last with `If-None-Match: *`: without a marker there is no tree;
- `.newest` beside the trees names the tree that was committed last, so that a delayed listing cannot hide it;
  every name in a listing is checked by HEAD.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable

from clustertrain.storage.posix_tree import HIDDEN
from clustertrain.storage.s3_objects import S3Objects
from clustertrain.storage.s3_tree import NEWEST, S3Tree


class S3Store(S3Objects):
    """Keys are below the location's prefix. Names that start with '.' belong to the store."""

    def list(self, prefix: str) -> builtins.list[str]:
        return self._directly_below(prefix, "Contents", "CommonPrefixes")

    def _directly_below(self, prefix: str, *kinds: str) -> builtins.list[str]:
        start, pages = len(self._prefix(prefix)), self._pages("list_objects_v2", prefix, Delimiter="/")
        found = [entry for page in pages for kind in kinds for entry in page.get(kind, [])]
        names = {(entry.get("Key") or entry["Prefix"])[start:].rstrip("/") for entry in found}
        return sorted(name for name in names if name and not name.startswith(HIDDEN))

    def local_folder(self, key: str) -> None:
        return None

    def new_tree(self, key: str) -> S3Tree:
        return S3Tree(self, key)

    def join_tree(self, key: str, handle: str) -> S3Tree:
        return self.new_tree(key)  # files have their final names

    def trees(self, prefix: str, marker: str) -> builtins.list[str]:
        newest = None
        while True:
            before = newest
            names = self._directly_below(prefix, "CommonPrefixes")  # a script may have its files beside them
            newest = (self.read_or_none(f"{prefix}/{NEWEST}") or b"").decode()
            whole = {name for name in {*names, newest} if name and self.exists(f"{prefix}/{name}/{marker}")}
            if newest in ("", before) or newest in whole:
                return sorted(whole)
            # It was removed meanwhile, so the listing may lack the one for which it was.

    def remove_tree(self, key: str, marker: str) -> None:
        self.remove(f"{key}/{marker}")
        self.remove_below(key)

    def collect_leftovers(
        self, prefix: str, marker: str, is_over: Callable[[str], bool]
    ) -> builtins.list[str]:
        over = filter(is_over, self._directly_below(prefix, "CommonPrefixes"))
        leftovers = {name for name in over if not self.exists(f"{prefix}/{name}/{marker}")}
        for name in leftovers:
            self.remove_below(f"{prefix}/{name}")
        for key, upload_id in self.uploads_below(prefix):
            if is_over(name := key.removeprefix(f"{prefix}/").partition("/")[0]):
                self.abort_upload(key, upload_id)
                leftovers.add(name)
        return sorted(leftovers)
