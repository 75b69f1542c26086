"""Where runs are kept: small files and trees of files under keys (`name/g1/attempts/1/claim.json`), behind
one protocol (store.py) with two implementations: a file system (posix.py) and S3 (s3.py).

A reader finds a file complete or not at all.
"""

from clustertrain.storage.location import Location, local_path
from clustertrain.storage.posix import PosixStore
from clustertrain.storage.store import Store, Tree, TreeFile, open_store, probe

__all__ = ["Location", "PosixStore", "Store", "Tree", "TreeFile", "local_path", "open_store", "probe"]
