"""build/scale.md and its pictures, from a report."""

from __future__ import annotations

from collections.abc import Iterator

from comparison.page import number

from scaling.chart import Panel, chart
from scaling.control_path import PHASES
from scaling.growth import growth
from scaling.report import CLOSED_FORM, SIMULATED, Report, Row

HEAD = """\
<!-- Written by: python benchmarks/scale.py --page build/scale.md -->

# Scale

How the control path of a run grows with the number of its ranks: what each process does on the storage that
all of them share, and what follows from it for 100,000 ranks. The first part is **counted**: the functions
that real ranks, agents, drivers and commands call (claims, rendezvous, probe, heartbeat, requests, events,
saves, `status`) ran for 64, 256 and 1,024 simulated ranks, as tasks on one machine, without Ray and torch.
The second part is **simulated** from these numbers. No run with so many real ranks was made, and the time
that Ray, NCCL and the training itself take is in neither part.
"""

COUNTED = """\
## What each process does on the storage

Operations are files that are read, written, created or removed, listings, and lines that are appended to
streams. A node that looks every 0.3 s for a result is counted with all looks of a minute. "node" is the agent
of SLURM on a node that is not the head; "rank" is one that is not rank 0, of a task or a function. "levels
off" is a number with a fixed limit.
"""

NAMED = """\
## What grows faster than log N

Per rank or node, on the storage:

- **The names of all nodes** are in claim.json and rendezvous.json of a SLURM job, and each agent reads both
  when it starts: the operations are constant, their bytes are not.
- **A resume with `train.strategy: fsdp`** looks in each rank for the files of all ranks, and torch's reader
  opens each of them: N operations per rank. It is the first thing to change for thousands of ranks. (A task
  or function without it reads one checkpoint.)

In one process:

- **`status`, `logs` and `ls`** read the stream of events of each node that has one, once per command.
- **The driver asks every rank** whether it lives when one has failed: all of them at once, and it waits 2 s
  and 1 ms per rank at most. Of those that do not answer it asks the nodes, one after the other. With NCCL the
  survivors die as well: then it reads the ends of their logs, one after the other, until it finds one with
  another cause.
- **Ray Train's controller asks every rank every 0.2 s** how it is. It is a call of Ray's, not of the storage.
- **plan.json and the event `group_started`** have an entry for each rank; the driver writes both once per
  start. A list of the host of each rank is sent to each rank through Ray.
- **The folder of the attempt** has a stream of each node, whose names the head lists.

Constant per rank, and still many together:

- **Each rank of a script** looks for `stop` and `save` five times a second, because its process
  gets the signal itself: of 100,000 ranks these are a million reads a second. Of a task or function only
  rank 0 looks.
- **Each rank looks for a request of `clustertrain stacks`** on a file system: a name that is not there. Up to
  100 ranks look once a second, more ranks less often: all together look 100 times a second, each of 1,000
  ranks every 10 s. With storage on S3 one rank of each node asks it every 5 s, and the others look in the
  spool of their node.
- **The log of a rank** is a file of its own, in a folder of its node. With storage on S3 each node sends the
  streams that grew every 5 s.

The records of earlier restarts are read at each restart: this grows with the restarts of an attempt, not with
its ranks.

What would grow and does not: the probe before a training writes one file per node, and each node reads those
of log2(nodes) others, which finds every division of the nodes into two storages. The head looks for failed
nodes in a folder that is empty while there are none. The supervisor reads at most 40 streams per look: with
12,500 nodes all have had their turn after 12,500 / 32 × 0.1 s = 39 s; those that grow are read at each look,
and all of them at the end. Of ranks that hang together the first counts the marks of the others. An agent
that looks for a later attempt reads no claim while there is none.
"""

SIMULATION = """\
## Start, detection and restart up to 100,000 ranks

A simulation of discrete events: the actors of each row above do their operations, as many as the law of the
row gives for that number of ranks, on a storage that serves some operations at a time. A stage begins when
the one before has ended, as in a real start. Times are of the control path alone, in seconds. "hang" is the
time until every rank has read that one hangs and has left its mark; the first rank waits 5 s for that, and
the stacks of a rank that is later are lost.
"""

ETTR = """\
## Effective training time ratio

Of all the time of a run, the part in which it trained and did not lose what it did (ETTR, as in [Meta's study
of two clusters](https://arxiv.org/abs/2410.21680), whose rates of failures these are: 6.5 and 2.34 per 1,000
node-days). Failures come at random while the run trains. A restart takes the simulated detection and restart
on the shared file system, and a fixed time for Ray, NCCL and the load of the state.

- **memory tier** is what clustertrain has: the nodes keep checkpoints of a few steps ago in their memory
  ([how](../docs/guides/checkpoints.md#checkpoints-in-memory)). The simulation takes them as of the last
  step. They do not survive the loss of a node: then the run continues from the last save.
- **spares** and **memory survives a node** are what-ifs, not features: clustertrain keeps no spare nodes and
  does not copy these checkpoints to another node. On SLURM the loss of a node ends the job, which is queued
  again; the wait for a node stands for that.

The closed form is the expected value of "saves only"; the difference from it is chance.
With 6.5 failures per 1,000 node-days, 100,000 ranks have one every 18 minutes: there the wait for another
node costs most, then the work since the last save, and the restart least.
"""


def page(report: Report) -> str:
    """The page as Markdown."""
    where = {
        "measured": report.taken,
        "command": f"`{report.command}`",
        **report.machine,
        **report.versions,
        "seed": str(report.seed),
        "processors used by others": f"{report.foreign_load:.1f}",
    }
    facts = [f"| {name} | {value} |" for name, value in where.items()]
    return "\n".join([HEAD, "| | |", "|---|---|", *facts, "", tables(report)])


def tables(report: Report) -> str:
    """Everything that was found."""
    lines = [
        COUNTED,
        "![Operations of each process, by the number of ranks](pictures/scale-operations.svg)",
        "",
    ]
    for phase in PHASES:
        lines += [f"### {title(phase)}", "", *counted([r for r in report.rows if r.phase == phase]), ""]
    lines += ["### One operation", "", *latencies(report), "", NAMED, SIMULATION]
    lines += ["![Times of start, detection and restart](pictures/scale-times.svg)", "", *times(report), ""]
    lines += [ETTR, "![The ratio, by the number of ranks](pictures/scale-ettr.svg)", "", *ratios(report), ""]
    return "\n".join([*lines, "## Parameters", "", *parameters(report), ""])


def title(phase: str) -> str:
    return phase[0].upper() + phase[1:]


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


def ratios(report: Report) -> Iterator[str]:
    yield f"| failures per 1,000 node-days | run | {' | '.join(f'{ranks:,}' for ranks in SIMULATED)} |"
    yield f"|---|---|{'---|' * len(SIMULATED)}"
    for rate, cases in report.ettr.items():
        for case, values in cases.items():
            yield f"| {rate} | {case} | {' | '.join(f'{each:.3f}' for each in values)} |"


def parameters(report: Report) -> Iterator[str]:
    """What the simulations assume."""
    each = report.parameters
    yield "| | |"
    yield "|---|---|"
    for name, storage in each.storages.items():
        source = "the mean of what was counted" if name == "this disk" else "assumed"
        service = f"{1000 * storage.service_s:.2f} ms per operation, {storage.channels} at a time"
        yield f"| {name} | {service} ({source}) |"
    yield f"| Ray Train's controller asks the ranks | every {each.poll_s:g} s |"
    yield f"| the driver asks a rank whether it lives | {1000 * each.answer_s:g} ms (assumed) |"
    yield f"| fixed part of a restart | {each.fixed_restart_s:g} s (assumed) |"
    yield f"| ranks per node | {each.per_node} |"
    yield f"| saves | every {each.save_every_s:g} s; each takes {each.save_s:g} s of training (assumed) |"
    yield f"| failures that kill ranks and leave the node | {each.kills:.0%} (assumed) |"
    yield f"| the wait for a node without a spare | {each.replace_s:g} s (assumed) |"
    spares = f"{each.spare_share:.0%} of the nodes, and one; repaired after {each.repair_s:g} s"
    yield f"| spare nodes | {spares} (assumed) |"
    yield f"| simulated | {each.days:g} days, {each.tries} times, seeds from {report.seed} |"


def pictures(report: Report) -> dict[str, str]:
    """The pictures, by the names of their files."""
    shown = {
        "node, probe, start": ("start", "node, probe"),
        "node, start": ("start", "node"),
        "rank, start": ("start", "rank"),
        "rank, hang": ("hang", "rank"),
        "status, once": ("status", "command"),
    }
    rows = {(row.phase, row.actor): row for row in report.rows}
    operations = {name: sorted(rows[key].operations.items()) for name, key in shown.items()}
    by_ranks = {
        f"{phase}, {storage}": list(zip(SIMULATED, seconds, strict=True))
        for storage, phases in report.times.items()
        for phase, seconds in phases.items()
        if storage in ("driver", "shared file system")
    }
    ratios_of = {
        rate: {
            case: list(zip(SIMULATED, values, strict=True))
            for case, values in cases.items()
            if case != CLOSED_FORM
        }
        for rate, cases in report.ettr.items()
    }
    return {
        "scale-operations.svg": chart(
            "Operations of each process on the storage; the numbers are in the tables of this page",
            [Panel("Operations of each process", "counted", operations, is_log=True)],
        ),
        "scale-times.svg": chart(
            "Seconds of the control path; the numbers are in the table of this page",
            [Panel("Time of the control path", "s, simulated", by_ranks, is_log=True)],
        ),
        "scale-ettr.svg": chart(
            "Effective training time ratio; the numbers are in the table of this page",
            [
                Panel("Effective training time ratio", f"{rate} failures per 1,000 node-days", lines)
                for rate, lines in ratios_of.items()
            ],
        ),
    }
