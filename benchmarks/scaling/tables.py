"""What scale.py found, as tables in Markdown.

Of the words in them: "node" is the agent of SLURM on a node that is not the head; "rank" is one that is not
rank 0, of a task or a function. Operations are files that are read, written, created or removed, listings,
and lines that are appended to streams. "levels off" is a number with a fixed limit. Simulated times are of
the control path alone. "hang" is the time until every rank has left its mark.
"""

from __future__ import annotations

from collections.abc import Iterator

from comparison.page import number

from scaling.control_path import PHASES
from scaling.growth import growth
from scaling.report import SIMULATED, Report, Row


def tables(report: Report) -> str:
    """Everything that was counted, which took `report.seconds`, and everything that was simulated."""
    where = {
        "measured": report.taken,
        "command": f"`{report.command}`",
        **report.machine,
        **report.versions,
        "seed": str(report.seed),
        "processors used by others": f"{report.foreign_load:.1f}",
    }
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in where.items()), ""]
    for phase in PHASES:
        of_phase = [row for row in report.rows if row.phase == phase]
        lines += [f"## Counted: {phase}", "", *counted(of_phase), ""]
    lines += ["## One operation", "", *latencies(report), ""]
    lines += ["## Simulated seconds", "", *times(report), ""]
    return "\n".join([*lines, "## The storages", "", *storages(report), ""])


def counted(rows: list[Row]) -> Iterator[str]:
    sizes = sorted(rows[0].operations)
    heads = [f"{ranks:,} ranks" for ranks in sizes]
    yield f"| each | {' | '.join(heads)} | operations | bytes at {sizes[-1]:,} | bytes |"
    yield f"|---|{'---|' * len(sizes)}---|---|---|"
    for row in rows:
        numbers = " | ".join(number(row.operations[ranks]) for ranks in sizes)
        moved = growth(row.moved_bytes).law
        yield f"| {row.actor} | {numbers} | {row.growth.law} | {row.moved_bytes[sizes[-1]]:,.0f} | {moved} |"


def latencies(report: Report) -> Iterator[str]:
    sizes = list(report.seconds)
    yield f"Medians with {int(sizes[-1]):,} ranks, 16 of them at a time on this disk; writes are fsynced."
    yield ""
    yield f"| {' | '.join(report.medians_s)} |"
    yield f"|{'---|' * len(report.medians_s)}"
    yield f"| {' | '.join(f'{1000 * each:.2f} ms' for each in report.medians_s.values())} |"


def times(report: Report) -> Iterator[str]:
    yield f"| ranks | {' | '.join(f'{ranks:,}' for ranks in SIMULATED)} |"
    yield f"|---|{'---|' * len(SIMULATED)}"
    for storage, phases in report.times.items():
        for phase, seconds in phases.items():
            yield f"| {phase}, {storage} | {' | '.join(f'{each:.2f}' for each in seconds)} |"


def storages(report: Report) -> Iterator[str]:
    yield "| | |"
    yield "|---|---|"
    for name, storage in report.storages.items():
        source = "the mean of what was counted" if name == "this disk" else "assumed"
        service = f"{1000 * storage.service_s:.2f} ms per operation, {storage.channels} at a time"
        yield f"| {name} | {service} ({source}) |"
