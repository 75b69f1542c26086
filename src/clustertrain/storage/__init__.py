"""Where runs are kept: small files and trees of files under keys (`name/g1/attempts/1/claim.json`).

A reader finds a file complete or not at all.

store.py                Store: the protocol, open_store, and a probe of what a run needs
location.py             a URI, and how it is reached
posix.py                a store on a file system
posix_tree.py           a folder that appears complete
s3.py                   a store on S3
s3_tree.py              a tree of objects that appears complete
s3_bucket.py            the requests that a store makes of its bucket
s3_client.py            the client, its retries, and what its errors mean
s3_exclusive_create.py  creates an object once, on a server without conditional writes
"""

from clustertrain.storage.location import Location, local_path
from clustertrain.storage.posix import PosixStore
from clustertrain.storage.store import Store, Tree, TreeFile, open_store, probe

__all__ = ["Location", "PosixStore", "Store", "Tree", "TreeFile", "local_path", "open_store", "probe"]
