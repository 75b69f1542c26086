"""The storage of runs: small files and trees of files under keys (`name/g1/attempts/1/claim.json`).

Every write is atomic: a reader never sees a partial file.

store.py        Store: either of the two stores; open_store, and a probe of what a run needs
location.py     a URI, and the options of the S3 client
record_file.py  a file with one record, and the check of JSON against a frozen class
posix.py        a store on a file system
posix_tree.py   a folder that becomes visible atomically
s3.py           a store on S3
s3_tree.py      a tree of objects that becomes visible atomically
s3_objects.py   objects below a prefix: the requests of a store
s3_client.py    the client, its retries, and the classification of its errors
"""

from clustertrain.storage.location import Location, local_path
from clustertrain.storage.posix import PosixStore
from clustertrain.storage.store import Store, Tree, open_store, probe

__all__ = ["Location", "PosixStore", "Store", "Tree", "local_path", "open_store", "probe"]
