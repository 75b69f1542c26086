"""The tables that end a run and that `ls` and `status` print, and what to type next."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from clustertrain.observe.progress import aligned, time_text
from clustertrain.result import Result
from clustertrain.run_dir import RunDir
from clustertrain.status import Status

Row = tuple[str, str]


def summary_rows(run: RunDir, result: Result) -> list[Row]:
    """What the summary of an attempt says, line by line."""
    rows = [
        ("run", f"{run.name}, generation {run.generation}"),
        ("state", f"{result.state} ({result.cause})"),
    ]
    if result.step:  # a script counts its own
        rows.append(
            ("step", f"{result.step}" + (f", epoch {result.epoch}" if result.epoch is not None else ""))
        )
    rows += [(name, f"{value:.4g}") for name, value in result.metrics.items() if name not in _HIDDEN]
    if result.restarts:
        rows.append(("restarts", f"{result.restarts}, {result.redone_steps} steps done again"))
    if result.train_s is not None:
        rows.append(("training", time_text(result.train_s)))
    if result.checkpoint:
        rows.append(("checkpoint", result.checkpoint))
    rows.append(("folder", run.uri))
    return rows


_HIDDEN = ("samples_per_s", "lr", "total_steps", "samples_seen", "time")


def next_step(run: RunDir, result: Result, job_file: str) -> str:
    """What to type next, after this ending."""
    clustertrain = _to_type("clustertrain")
    logs, run_it = f"{clustertrain} logs {job_file}", f"{clustertrain} run {job_file}"
    if result.state == "done":
        curve = f"curve:  {_to_type('tensorboard')} --logdir {run.uri}/attempts\n" if result.metrics else ""
        return f"{curve}output: {logs} --rank 0\nanew:   {run_it} --fresh"
    if result.state == "failed":
        return f"logs:   {logs}\nagain:  {run_it}"
    return f"continue:  {run_it}"


def _to_type(command: str) -> str:
    """A command of this installation as it is typed here: by its path where the shell would find another."""
    own = Path(sys.executable).with_name(command)
    found = shutil.which(command)
    if found is not None and own.exists() and Path(found).samefile(own):
        return command
    return str(min(own, Path(os.path.relpath(own)), key=lambda path: len(str(path))))


def print_table(rows: Sequence[Row]) -> None:
    """Two columns: framed on a terminal, plain elsewhere."""
    if not sys.stdout.isatty():
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            print(f"{name:<{width}}  {value}")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(value))
    Console(highlight=False).print(table)


def status_rows(status: Status) -> list[Row]:
    """What `status` says of one run."""
    if status.result is not None:
        rows = summary_rows(status.run, status.result)
        if status.result.text:
            rows.insert(2, ("text", status.result.text))
        return rows
    rows = [
        ("run", f"{status.run.name}, generation {status.run.generation}"),
        ("state", status.state),
        ("attempt", str(status.attempt.n)),
        ("runs as", status.runner or "nobody: its processes are gone; run it again to continue"),
    ]
    if status.last is not None:
        figures = {k: v for k, v in status.last.items() if k in ("step", "epoch", "loss", "samples_per_s")}
        rows.append(("last figures", ", ".join(f"{k} {v:.6g}" for k, v in figures.items() if v is not None)))
        rows.append(("", f"{time_text(time.time() - status.last['time'])} ago"))
    rows.append(("folder", status.run.uri))
    return rows


def list_lines(statuses: Sequence[Status]) -> list[str]:
    """The lines of `ls`, columns aligned."""
    table = [("NAME", "STATE", "STEP", "ATTEMPT", "FIGURES")]
    for s in statuses:
        metrics = s.result.metrics if s.result else {}
        figures = ", ".join(f"{k} {v:.4g}" for k, v in metrics.items() if k not in _HIDDEN)
        table.append((s.run.name, s.state, str(s.step), str(s.attempt.n), figures))
    return aligned(table)


def finish(run: RunDir, result: Result, job_file: str) -> int:
    """Print how a run ended and what to type next; returns its exit code."""
    if result.text:
        print(f"error: {result.text}", file=sys.stderr)
    print_table(summary_rows(run, result))
    print(next_step(run, result, job_file))
    return result.exit_code
