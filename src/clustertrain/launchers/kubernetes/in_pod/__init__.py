"""The programs that run in the pods of a run.

this_pod.py     the job of this pod
submitter.py    the submitter's pod: submits the entrypoint to Ray, and again if the head is replaced
entrypoint.py   what Ray runs in the head's pod: claims the attempt, runs the driver
ray_start.py    what `ray start` calls before it starts Ray: its limits grow with the job's
unpack_code.py  the init container: unpacks the job's code
post_start.py   a worker's pod: sends its streams to S3
pre_stop.py     before a pod ends: requests a save or a stop, and waits for it
"""
