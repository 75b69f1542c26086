"""What runs in the worker processes of Ray Train: one process per rank."""
