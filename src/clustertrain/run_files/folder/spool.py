"""Where this node keeps the streams of a run on S3 until they are sent."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

from clustertrain.node.user_folders import spool_base
from clustertrain.storage import Store


def spool_folder(store: Store) -> Path:
    """Return the folder for the streams of this node until they are sent to the storage, under the same keys.

    The nodes of a cluster may have one home folder, and no node may remove what another one writes.
    """
    location = store.location
    identity = f"{socket.gethostname()} {location.endpoint or ''} {location.uri.rstrip('/')}"
    return spool_base() / hashlib.sha256(identity.encode()).hexdigest()[:16]
