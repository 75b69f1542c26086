"""The spool: where a node keeps its streams if the storage is not a file system."""

from __future__ import annotations

import hashlib
from pathlib import Path

from clustertrain.node.user_folders import cache_folder
from clustertrain.storage import Store


def spool_folder(store: Store) -> Path:
    """The folder for the streams of this node until they are sent to the storage, under the same keys."""
    location = store.location
    identity = f"{location.endpoint or ''} {location.uri.rstrip('/')}"
    return cache_folder() / "spool" / hashlib.sha256(identity.encode()).hexdigest()[:16]
