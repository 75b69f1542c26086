"""The agent: one step of a SLURM job runs this program on every node.

__main__.py     the program: starts the agent of the head or of a worker node
head.py         the agent of the head node: claims the attempt, and runs it
end_policy.py   determines why a SLURM job ends, and ends the run in time
allocation.py   the start of the SLURM job that an agent belongs to
mailbox.py      the files by which the batch shell and the agent of its node communicate

What it has in common with the agents of other schedulers is in launchers/agent/.
"""
