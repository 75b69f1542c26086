"""Staging: each data set is fetched once, verified, and published atomically.

stage.py          stage(), the entry point: one process fetches the data set, the others wait
entry.py          paths and keys of staged data sets
fetch.py          downloads one file, from the web, from S3 or from a path
http.py           downloads from http(s)://
s3.py             downloads from s3://
source.py         transient errors and their retries; what messages show of a URI
part.py           the download of a file, from which the next process resumes
archive.py        unpacks archives safely
lease.py          one holder among any number of contenders
"""
