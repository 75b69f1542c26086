"""Parses the times and durations that SLURM prints."""

from __future__ import annotations

import re
from datetime import datetime


def slurm_duration_s(text: str) -> int | None:
    """Return the seconds of `10:00` (m:s), `1:00:00` or `2-00:00:00`; None for every other text.

    `UNLIMITED`, `infinite` and `n/a` are such texts.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def slurm_time_s(text: str) -> float | None:
    """Return the seconds since 1970 of `2026-11-21T16:09:55`; None for another text.

    The text is in the cluster's time zone.
    """
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").timestamp()
    except ValueError:
        return None
