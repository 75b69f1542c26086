"""The data sets of a job, as a worker reads them.

shard_source.py  how a worker opens the shards of Shards: local files, S3, the web
shard_index.py   a command that counts the samples of shards and prints their index
local_data.py    the data sets on this machine
"""
