"""What runs in the pods of a run: the submitter, the entrypoint, the lifecycle hooks."""
