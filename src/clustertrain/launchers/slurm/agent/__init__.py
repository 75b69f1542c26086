"""The agent: one step of a SLURM job runs this program on every node.

__main__.py     the program: starts the agent of the head or of a worker node
head.py         the agent of the head node: claims the attempt, runs Ray's head and the driver
worker.py       the agent of every other node: finds the head, runs Ray, waits for the end
node.py         the common part: reads the start, chooses address and ports, starts Ray, records the arrival
end_policy.py   determines why a SLURM job ends, and ends the run in time
allocation.py   the start of the SLURM job that an agent belongs to
mailbox.py      the files by which the batch shell and the agent of its node communicate
ray_command.py  the command and the environment of Ray on a node
ray_process.py  Ray's processes on a node, started without `ray start`
"""
