"""One line of text for each event of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from clustertrain.node.units import size_text
from clustertrain.observe.terminal_text import plain
from clustertrain.run_files.streams.events import Record
from clustertrain.run_files.streams.history import ranks_of


def line_of(record: Record) -> str | None:
    """Return the line of text for an event, or None.

    The line may contain what the user's code raised. None is for events that are only for programs, and for
    events that lack a field of their kind (see run_files/streams/events.py).
    """
    make = _LINES.get(record["kind"])
    try:
        line = make(record) if make else None
    except (KeyError, TypeError):
        return None
    return None if line is None else plain(line)


def _stage_line(e: Record) -> str | None:
    size = f", {size_text(e['bytes'])}" if e.get("bytes") else ""
    if e["phase"] == "ready":
        return f"data {e['name']}: ready after {e.get('seconds', 0):.1f} s{size}"
    if e["phase"] == "wait":
        return f"data {e['name']}: another process is fetching it; waiting"
    if e.get("problem"):
        return f"data {e['name']}: {e['problem']}; trying again"
    return None


def _group_line(e: Record) -> str:
    workers = "1 worker" if e["world_size"] == 1 else f"{e['world_size']} workers"
    names = Counter(gpu["name"] for rank in ranks_of(e) for gpu in rank.get("gpus", ()))
    gpus = ", ".join(f"{count} × {name}" for name, count in names.items())
    return (
        f"{workers} started"
        + (f", restart {e['restart']}" if e["restart"] else "")
        + f"\n{gpus}" * bool(gpus)
    )


def _resumed_line(e: Record) -> str:
    redone = f"; {e['redone_steps']} steps to repeat" if e["redone_steps"] else ""
    if e["checkpoint"] is None:
        return f"starting from step 0: there was no checkpoint yet{redone}"
    if e.get("in_memory"):
        return f"resuming after step {e['step']} (epoch {e['epoch']}), from the memory of the nodes{redone}"
    return f"resuming from checkpoint {e['checkpoint']} (step {e['step']}, epoch {e['epoch']}){redone}"


def _checkpoint_line(e: Record) -> str:
    last = "; stopping as requested" if e.get("reason") == "stop" else ""
    return (
        f"checkpoint {e['name']}: {size_text(e['bytes'])}, "
        f"training waited {e['blocking_s'] * 1000:.0f} ms{last}"
    )


def _restarting_line(e: Record) -> str:
    """Return the line for a restart, with the failure before it.

    A failure that ends the run has no line: the result has the same text.
    """
    after = f"after step {e['step']}: " if e.get("step") else ""
    why = f"{after}{e['text']}\n" if e.get("text") else ""
    counted = "" if e.get("of_script") else " in a row without a new checkpoint"
    what = "the driver and the workers" if e.get("with_driver") else "the workers"
    return f"{why}restarting {what} ({e['restart']} of at most {e['of']}{counted})"


def _stop_line(e: Record) -> str:
    if e.get("of_script"):  # its worker writes a note when it has sent the signal
        return "a stop was requested; a second request ends the run at once"
    return "stopping: the workers finish this step and save; a second request ends it at once"


_LINES: dict[str, Callable[[Record], str | None]] = {
    "stage": _stage_line,
    "ray_started": lambda e: f"Ray started in {e['seconds']:.1f} s",
    "group_started": _group_line,
    "resized": lambda e: str(e["text"]),
    "resumed": _resumed_line,
    "fallback": lambda e: f"warning: checkpoint {e['checkpoint']} is damaged, using an older one: {e['why']}",
    "restarting": _restarting_line,
    "checkpoint": _checkpoint_line,
    "stop_requested": _stop_line,
    "warning": lambda e: f"warning: {e['text']}",
    "note": lambda e: str(e["text"]),
    "transport": lambda e: str(e["text"]),
    "watchdog": lambda e: f"rank {e['rank']}: {e['text']}",
    "eval": lambda e: f"evaluated at step {e['step']}: {figures_text(e)}",
}

NOT_FIGURES = ("step", "epoch", "time", "total_steps", "samples_per_s", "lr", "samples_seen")
"""Values of a record of metrics that are not figures of the model."""


def figures_text(record: Record) -> str:
    """Return the figures of a record of metrics: `loss 0.1234, accuracy 0.98`."""
    numbers = {k: v for k, v in record.items() if isinstance(v, int | float) and k not in NOT_FIGURES}
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
