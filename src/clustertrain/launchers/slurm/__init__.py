"""SLURM: renders a job as a script for sbatch, submits it, and asks for its state in the queue.

plugin.py      registers the launcher
section.py     the section `slurm` of a job file
launcher.py    the scheduler: plans a submission, and calls sbatch
preflight.py   the checks before a job is submitted
script.py      the sbatch script of a job, with the files of templates/
queue.py       the states of jobs in squeue and sacct
ray_start_retry.py  what follows if Ray does not start on a node
ray.py         the driver's connection to the Ray of its job
times.py       times and durations as SLURM writes them
agent/         the program that runs on every node of a job
"""
