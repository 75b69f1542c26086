"""Whether torch and Ray are installed here, without importing them."""

from __future__ import annotations

from importlib.util import find_spec


def missing_for_training() -> list[str]:
    """What this Python lacks of torch and ray; looks, and imports neither."""
    return [name for name in ("torch", "ray") if find_spec(name) is None]
