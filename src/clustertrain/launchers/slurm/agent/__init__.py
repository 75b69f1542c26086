"""The agent that one step of a SLURM job runs on every node."""
