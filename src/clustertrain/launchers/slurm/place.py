"""The place of SLURM's jobs."""

from __future__ import annotations


def place_of(cluster: str | None) -> dict[str, str]:
    """Return the place of the jobs of a cluster; empty if its name is not known."""
    return {"cluster": cluster} if cluster else {}
