"""A data set is fetched once, and is complete and verified when it is there.

stage.py            stage(): the way in; one process fetches, the others wait
entry.py            where data sets are kept, and under which name
source.py           what a source is: bytes that can be opened at any offset
file_and_http.py    sources: paths, file:// and http(s)://
s3.py               sources: s3://
fetch.py            one file from its source onto the disk
parallel_ranges.py  several ranges of one file at the same time
partial_file.py     the part that is there, and the checksums by which it is trusted after a kill
running_hash.py     sha256 of a file while it is written
retries.py          how long a fault that may pass is retried
archive.py          unpacks archives safely
folder_digest.py    three numbers that tell whether an unpacked folder is unchanged
lease.py            one of any number of processes on any number of hosts does the work
"""
