"""The small job, for tests that start nothing."""

from small_job import job

__all__ = ["job"]
