"""Whether torch and Ray are installed here, without importing them."""

from __future__ import annotations

from importlib.util import find_spec


def missing_for_training() -> list[str]:
    """The names of those of torch and ray that are not installed; imports neither."""
    return [name for name in ("torch", "ray") if find_spec(name) is None]
