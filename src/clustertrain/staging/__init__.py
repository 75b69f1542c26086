"""A data set arrives once, whole and verified.

stage.py      stage(): one brings it, the others wait; the way in
staged.py     where data sets lie, and by what name
sources.py    where they come from: paths, file:// and http(s)://; sources_s3.py: s3://
fetch.py      one file onto the disk; spans.py: in parallel ranges
part.py       what is there of it, believed after a kill as far as its checksums go
follower.py   sha256 of what is written, in order, while it is written
retries.py    how long a fault is met with another try
archive.py    unpacked safely; contents.py: the digest of what came out
lease.py      one worker among any number of contenders
"""
