"""The program that runs on each host of a job of several hosts, whatever the scheduler.

node.py      the common part: process, address and ports, the start of Ray, what follows if it fails
head.py      the host of the head: publishes the rendezvous, runs Ray's head and the driver
worker.py    every other host: finds the head, runs Ray, waits for the end
node_end.py  ends a run whose host is lost, or that a newer attempt has taken over
ray_process.py  Ray's processes on a host, started without `ray start`
ray.py       the driver's connection to that Ray

slurm/agent/ starts it for SLURM, and scheduler/several_hosts.py for the schedulers of plug-ins.
"""
