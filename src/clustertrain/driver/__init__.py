"""The driver: one process per attempt, which runs the job with Ray Train and writes the result.

__main__.py      the program: job -> TorchTrainer.fit -> result.json
ray_cluster.py   the driver's interface to a Ray cluster; launchers/*/ray.py have the classes
elastic_cluster.py  a Ray cluster whose nodes come and go
world_size.py    how many workers have room; why there are fewer or more
ray_internals.py  Ray's private API: the one file that names it
ray_node.py      starts Ray on this machine, within a deadline of the site
fork/            the fork server of a node, which makes Ray's worker processes
connection.py    connects to a Ray that runs
deadline.py      ends the driver if a call to Ray does not return
ray_watch.py     notices that Ray has ended or does not answer, and ends the driver
starts.py        the loop over the starts of the worker group
trainer.py       one start with Ray Train: TorchTrainer with its controller in the driver
calls.py         the answers of the ranks to calls, with Ray and without
group/           one start of the worker group: its steps; a group without Ray
backend.py       Ray Train's hooks for the steps of a start
cause/           the cause of a failed start of the worker group
retry_policy.py  whether another start of the worker group can help
growth.py        a group that is smaller than the job allows returns when there is room for more
result_of_fit.py  the result of the attempt, from what rank 0 reported, a failure, or an error
"""
