"""Staging: each data set is fetched once, verified, and published atomically.

stage.py          stage(), the entry point: one process fetches the data set, the others wait
entry.py          paths and keys of staged data sets
marker.py         the record of a staged data set
source.py         a source: bytes that can be opened at any offset; how long its errors are retried
local_file.py     sources: paths and file://
http.py           sources: http(s)://
s3.py             sources: s3://
fetch.py          downloads one file, in several streams where its source has ranges
partial_file.py   a partial download, from which the next process resumes
archive.py        unpacks archives safely
folder_digest.py  the digest of an unpacked folder
lease.py          one holder among any number of contenders
"""
