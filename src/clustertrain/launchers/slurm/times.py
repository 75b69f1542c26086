"""Times and durations as SLURM writes them, the same on the nodes and where jobs are submitted."""

from __future__ import annotations

import re
from datetime import datetime


def slurm_duration_s(text: str) -> int | None:
    """`10:00` (minutes, seconds), `1:00:00` or `2-00:00:00`; None for `UNLIMITED`, `infinite`, `n/a`."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def slurm_time_s(text: str) -> float | None:
    """`2026-11-21T16:09:55`, in the cluster's time zone, in seconds since 1970; None where it is no time."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").timestamp()
    except ValueError:
        return None
