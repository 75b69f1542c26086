"""Processes of a run that leave nothing behind, whatever is killed."""
