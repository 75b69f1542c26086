"""Files that grow while a run trains: events, metrics, logs.

streams.py        files that grow: one writer, any reader, on a file system or on S3
stream_upload.py  sends the streams of a node to S3 while they grow
events.py         events and metrics, as lines of JSON
event_log.py      their writer, which needs no package
rank_log.py       the lines of clustertrain in the log of a rank, between which the user's code prints
history.py        the streams of all restarts, merged
step_counter.py   the last finished step; it survives a kill of its writer
"""
