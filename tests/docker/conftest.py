"""`image`: the project's own, built once."""

from clusters.containers import image

__all__ = ["image"]
