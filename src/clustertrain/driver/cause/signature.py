"""The signature of a failure: equal if the same failure occurs again, on any rank and in any start."""

from __future__ import annotations

import re

from clustertrain.worker.code.error_report import ErrorReport

_CHARACTERS = 300
# The parts of a message that differ between starts or ranks although the error is the same.
_VARYING = (
    (re.compile(r"0x[0-9a-fA-F]{7,}"), "0x…"),  # an address in memory; an error code has fewer digits
    (re.compile(r"\[?\b\d{1,3}(?:\.\d{1,3}){3}\]?:\d+"), "…:…"),  # a peer's address and port
    (
        re.compile(
            r"(?i)\b((?:local_|global_|world_)?rank[\s=:#]{0,2}|pid(?:\(s\))?[\s=:#]{0,2})\d+(?:, \d+)*"
        ),
        r"\1…",
    ),
    (re.compile(r"\b(cuda|GPU|device)([ :=]{1,2})\d+"), r"\1\2…"),  # of the rank
    (re.compile(r"\b\d{4}-\d\d-\d\d[T _]\d\d[:-]\d\d[:-]\d\d(?:[.,]\d+)?"), "…"),  # a date and time
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "…"),  # a UUID
    # Names that tempfile, mktemp, multiprocessing and torch generate.
    (re.compile(r"(?<=/)(tmp|pymp-)[a-z0-9_]{8}(?![\w])"), r"\1…"),
    (re.compile(r"(?<=/)(tmp\.)[A-Za-z0-9]{6,12}(?!\w)"), r"\1…"),
    (re.compile(r"(?<=/)(torch_)\d+_\d+(?:_\d+)?"), r"\1…"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{16,}\b|\b\d{12,}\b"), "…"),  # an id of Ray, of a thread
)


def signature_of(report: ErrorReport) -> str:
    """Return the signature of an exception: its class, the line of the user's code, and its message."""
    at = f" at {report.frames[0]}" if report.frames else ""
    return signature(f"{report.name}{at}: {report.message.strip()}")


def signature(text: str) -> str:
    """Return the first line without the parts that vary: equal for the same error on any rank, in any start.

    Other numbers stay: a shape, a size or an index is part of the error.
    """
    line = text.partition("\n")[0]
    for pattern, replacement in _VARYING:
        line = pattern.sub(replacement, line)
    return line[:_CHARACTERS]
