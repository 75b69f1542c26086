"""SLURM: what is submitted, how its queue is read, and the agent on each node (agent/)."""
