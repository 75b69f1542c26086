"""Parses the times and durations that SLURM prints."""

from __future__ import annotations

import re
from datetime import datetime


def slurm_duration_s(text: str) -> int | None:
    """Seconds of `10:00` (m:s), `1:00:00` or `2-00:00:00`; `UNLIMITED`, `infinite` and `n/a` give None."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def slurm_time_s(text: str) -> float | None:
    """Seconds since 1970 of `2026-11-21T16:09:55` in the cluster's time zone, or None for another text."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").timestamp()
    except ValueError:
        return None
