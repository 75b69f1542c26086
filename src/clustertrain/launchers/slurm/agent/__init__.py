"""The agent: one step of a SLURM job runs it on every node.

__main__.py     the program: head or worker
head.py         the agent of the head node: claims the attempt, runs Ray's head and the driver
worker.py       the agent of every other node: finds the head, runs Ray, waits for the end
node.py         what both do: read the start, choose address and ports, start Ray, report
end_policy.py   why a job of SLURM ends, and what the head does about it
allocation.py   what SLURM gave this node
mailbox.py      files through which the batch shell and the agent of its node talk
ray_command.py  the command and the environment of Ray on a node
ray_process.py  Ray's processes of a node, started without `ray start`
"""
