"""SLURM: a job is checked, rendered as a script for sbatch, submitted, and found again in the queue.

launcher.py    the launcher
submit.py      check, take a snapshot of the code, call sbatch
preflight.py   what would go wrong with a job, before it waits in the queue
partitions.py  whether the nodes of a cluster have what a job asks for
script.py      the sbatch script of a job, with the files of templates/
queue.py       what squeue and sacct say of jobs
state.py       where a run stands, from its files and the queue
status.py      reads those files and that queue
stop.py        stop a run, and keep SLURM from starting it again
ray.py         how the driver reaches the Ray of its job
times.py       times and durations as SLURM writes them
agent/         the program that runs on every node of a job
"""
