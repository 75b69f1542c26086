"""The tables of `status` and of the end of a run, and the hints for the next command."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence

from clustertrain.errors import EXIT_JOB, EXIT_STOPPED, ClusterTrainError
from clustertrain.node.units import aligned, time_text
from clustertrain.observe.event_lines import NOT_FIGURES
from clustertrain.observe.explain.explanation import line_of_row, summary
from clustertrain.observe.status import Row, Status
from clustertrain.observe.terminal_text import plain
from clustertrain.run_files.command_line import CommandLine, to_type
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.job_diff import change_lines, changed_nothing, run_beside, standing_attempt
from clustertrain.run_files.provenance import code_changes
from clustertrain.run_files.records.result import Result

LEAST_WALL_S = 60.0
"""ETTR and device hours of a shorter run say nothing."""


def summary_rows(run: RunDir, result: Result) -> list[Row]:
    """Return the rows of the summary of an attempt."""
    epoch = "" if result.epoch is None else f", epoch {result.epoch}"
    repeated = "" if result.redone_steps is None else f", {result.redone_steps} steps repeated"
    skipped, in_last = result.skipped_steps, " in the last start" * (result.restarts > 0)
    rows = [
        ("run", f"{run.name}, generation {run.generation}"),
        ("state", f"{result.state} ({result.cause})"),
        ("step", f"{result.step}{epoch}" if result.step else ""),
        *((name, f"{value:.4g}") for name, value in result.metrics.items() if name not in NOT_FIGURES),
        ("skipped steps", f"{skipped}, their gradients overflowed fp16" if skipped else ""),
        ("restarts", f"{result.restarts}{repeated}" if result.restarts else ""),
        ("training", f"{time_text(result.train_s)}{in_last}" if result.train_s is not None else ""),
        ("checkpoint", result.checkpoint),
        ("best", f"{result.best.name}, {result.best.text}" if result.best else ""),
        ("folder", run.uri),
    ]
    return [(name, text) for name, text in rows if text]


def next_step(run: RunDir, result: Result, command: CommandLine) -> str:
    """Return the hint for the next command after this result; `command` is the one that started the run."""
    if result.state == "done":
        curve = f"curve:  {_tensorboard(run)}\n" if result.metrics else ""
        return f"{curve}output: {command.of('logs', '--rank', '0')}\nfresh:  {command} --fresh"
    if result.state == "failed":
        return _after_failure(run, result, command)
    if result.step is None and result.exit_code == EXIT_STOPPED:
        return f"The run was stopped. The script has files in its checkpoint folder.\ncontinue:  {command}"
    if result.step is None:
        return (
            "The run was stopped. There is no file in the script's checkpoint folder: "
            f"it is unknown whether it resumes.\nstart again:  {command}"
        )
    if result.exit_code == EXIT_STOPPED:
        return f"The run was stopped and has saved a checkpoint.\ncontinue:  {command}"
    return f"The run was stopped before it had a checkpoint.\nstart again:  {command}"


def _tensorboard(run: RunDir) -> str:
    """Return the command that shows the run in TensorBoard.

    TensorBoard finds the server of the storage only by boto3's variables.
    """
    at = run.store.location
    of_boto3 = {
        "AWS_ENDPOINT_URL": at.endpoint,
        "AWS_DEFAULT_REGION": at.region,
        "AWS_PROFILE": at.profile,
    }
    given = [f"{name}={shlex.quote(value)}" for name, value in of_boto3.items() if value]
    return " ".join([*given, to_type("tensorboard"), "--logdir", shlex.quote(run.uri)])


def _after_failure(run: RunDir, result: Result, command: CommandLine) -> str:
    logs = f"logs:   {command.of('logs')}"
    if (newest := run.newest_attempt()) is not None and changed_nothing(newest):
        as_it_was = f"The changed job was refused; the run is as it was: {_standing_text(run)}."
        again = f"again, with another change:  {command} --accept-changes"
        new = f"as a new run beside it:  {run_beside(run, command)}"
        return f"{as_it_was}\n{logs}\n{new}\n{again}\nfresh:  {command.again_with('--fresh')}"
    edited = f"\nagain, with a changed job:  {command.again_with('--accept-changes')}"
    when = "once corrected" if result.exit_code == EXIT_JOB else "again"
    again = f"{when}:  {command}{edited if result.checkpoint else ''}"
    return f"{logs}\n{again}\nfresh:  {command.again_with('--fresh')}"


def _standing_text(run: RunDir) -> str:
    before = standing_attempt(run)
    result = before.result.read() if before is not None else None
    return f"{result.state} ({result.cause})" if result is not None else "without a result"


def print_table(rows: Sequence[Row]) -> None:
    """Print two columns; no text in them can change the terminal."""
    print(*aligned([(name, plain(text)) for name, text in rows]), sep="\n")


def status_rows(status: Status) -> list[Row]:
    """Return the rows of `status` for one run; for a failed or lost run the cause comes first."""
    standing, result = status.standing, status.result
    rows = [("run", f"{status.run.name}, generation {status.run.generation}"), ("state", standing.line)]
    if result is not None:
        rows = summary_rows(status.run, result)[:-1]
    else:
        rows += _last_figures(status)
    rows += [("attempt", _attempt_text(status)), *_worker_rows(status)]
    rows += [*_change_rows(status), *status.job_rows]
    if result is None and (not status.where or status.runner is None):
        rows.append(("runs as", status.runner or _why_no_runner(status)))
    rows += [*_notes(status), ("folder", status.run.uri), *_used_rows(status)]
    rows = _cause_first(rows, status.state, standing.text if result is None else result.text)
    is_lost = status.state == "lost" and status.ended is None
    return rows + _explained(status.attempt) if result is not None or is_lost else rows


def _cause_first(rows: list[Row], state: str, text: str) -> list[Row]:
    if not text:
        return rows
    if state in ("failed", "lost"):
        return [(state, text), *rows]
    return rows if any(text in value for _, value in rows) else [*rows[:2], ("text", text), *rows[2:]]


def _attempt_text(status: Status) -> str:
    if status.attempt is None:
        return "none yet"
    if status.ended is None or status.result is not None:
        return str(status.attempt.n)
    return f"{status.attempt.n}, which ended as {status.ended.state} ({status.ended.cause})"


def _last_figures(status: Status) -> list[Row]:
    """Return the newest figures of a run that has not ended, and their age."""
    if (last := status.last) is None:
        return []
    figures = {name: last.get(name) for name in ("step", "epoch", "loss", "samples_per_s")}
    numbers = (f"{k} {v:.6g}" for k, v in figures.items() if isinstance(v, int | float))
    left = [] if status.left_s is None else [f"{time_text(status.left_s)} left"]
    age = f"{time_text(time.time() - last['time'])} ago"
    return [("last figures", ", ".join([*numbers, *left])), ("", age)]


def _used_rows(status: Status) -> list[Row]:
    """Return the productive share of the time, the device hours, and the largest loss with its cause.

    The report has all losses.
    """
    ledger = status.ledger
    if status.attempt is None or ledger.ettr is None or ledger.wall_s < LEAST_WALL_S:
        return []
    used = f"ettr {ledger.ettr:.2f}, {ledger.device_hours:.3g} {ledger.device}-hours"
    for largest in ledger.losses()[:1]:
        used += f"; most lost: {time_text(largest.seconds)} {largest.category}, {largest.cause}"
    return [("used", used)]


def _worker_rows(status: Status) -> list[Row]:
    """Return the restarts and the number of workers of an attempt.

    The restarts are there while the attempt has no result. The number of workers is there if the newest start
    has another number than the attempt could have.
    """
    if status.attempt is None or (claim := status.files.claim) is None:
        return []
    newest = status.attempt.newest_restart()
    if newest is None:
        return []
    rows = [("restarts", str(newest.number))] if newest.number and status.ended is None else []
    plan = newest.plan.read()
    if plan is None or plan.world_size == claim.world_size:
        return rows
    return [*rows, ("workers", f"{plan.world_size} of {claim.world_size}")]


def _change_rows(status: Status) -> list[Row]:
    """Return where the job and its code were changed, and how.

    There is a row for each key, and for each change of the code.
    """
    of_job = [("" if n else "changes", line) for n, line in enumerate(change_lines(status.run))]
    return of_job + [("" if n else "code", each.text) for n, each in enumerate(code_changes(status.run))]


def _notes(status: Status) -> list[Row]:
    """Return notes about missing information, such as a scheduler that did not answer."""
    unknown = status.standing.text if status.result is not None else None
    return [("note", text) for text in (status.note, unknown) if text]


def _why_no_runner(status: Status) -> str:
    if status.state == "queued":
        return "not started"
    if status.state == "lost":
        return "its processes are gone; run it again to continue"
    return "no process"


def finish(run: RunDir, result: Result, command: CommandLine) -> int:
    """Print the result of a run and the hint for the next command; return the exit code of the run.

    It also prints the first lines of `explain`, if they add to the message of a failure.
    """
    print_ending(run, result)
    print(next_step(run, result, command))
    newest = run.newest_attempt()
    if newest is not None and newest.result.exists():  # else another start has taken over
        for row in _explained(newest):
            print(plain(line_of_row(row)))
    return result.exit_code


def _explained(attempt: Attempt | None) -> list[Row]:
    """Return the first rows of `explain`, or none: a log that cannot be read must not hide the result."""
    try:
        return summary(attempt) if attempt is not None else []
    except ClusterTrainError:
        return []


def print_ending(run: RunDir, result: Result) -> None:
    """Print the result of a run, the cause of a failure first."""
    if result.text and result.state != "done":  # of a run that is done, the events had the text
        print(f"error: {plain(result.text)}", file=sys.stderr, flush=True)
    print_table(summary_rows(run, result))
    sys.stdout.flush()
