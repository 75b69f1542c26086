"""What a run left in its storage: its curve, the samples that each step used, and its checkpoints.

Each value is a text, and two texts are equal if and only if the bits are equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.recorded_job import job_at
from clustertrain.run_files.streams.history import AttemptFollower, events_of_attempt, host_of
from clustertrain.run_files.streams.streams import Tail

_COMPARED = ("loss", "lr", "grad_norm", "loss_scale")
_COUNTED = re.compile(r"(?i)(epoch|step|iteration|iter|batch)s?\W{0,4}(\d+(?:\.\d+)?)")
_POSITION = ("time", "kind", "step", "epoch")


@dataclass
class RunFingerprint:
    """What is compared of a run, in the order in which it was made.

    Attributes:
        curve: the metrics of each step, or of each line of a script.
        samples: a digest of the samples of each pass of a rank, by "epoch 0, step 1, rank 0".
        states: the tensors and numbers of each checkpoint.
        steps: the last step of a task or function; of a script, how many losses it printed.
        strike: the step of the fault, and its rank; None if there was none.
        resumed: where it resumed.
        lost_steps: repeated steps; of a script, losses that were printed again.
        lost_s: seconds between the fault and the first step that had not been done before it.
    """

    curve: dict[str, dict[str, str]] = field(default_factory=dict)
    samples: dict[str, dict[str, str]] = field(default_factory=dict)
    states: dict[str, dict[str, str]] = field(default_factory=dict)
    steps: int = 0
    strike: tuple[int, int] | None = None
    resumed: str = ""
    lost_steps: int = 0
    lost_s: float | None = None


def left_by(run: RunDir) -> RunFingerprint:
    """Read what a run left. It imports torch."""
    from clustertrain.checkpoints import digests

    job = job_at(run, run.job_key)
    found, folder, attempts = RunFingerprint(), run.store.local_folder(run.checkpoints.key), run.attempts()
    records = [each for attempt in attempts for each in AttemptFollower(attempt).new(of_all=True)]
    _read_records(found, sorted(records, key=lambda each: each["time"]))
    if job is None or not job.is_script:
        found.states = digests.of_checkpoints(run.checkpoints)
        return found
    _read_lines(found, (line for each in attempts for line in _lines_of_rank_zero(each)), job.drill.loss)
    if folder is not None:
        found.states = digests.of_files(folder)
    found.resumed = "with its checkpoint files" if found.states else "from the start"
    return found


def _read_records(found: RunFingerprint, records: Iterable[dict[str, Any]]) -> None:
    """Read the records of a run into `found`.

    The record of a repeated step replaces its earlier record, as in the curve that users see.
    """
    struck_at, before = None, 0
    for record in records:
        kind, step = record["kind"], int(record.get("step") or 0)
        if kind == "samples":
            where = f"epoch {record['epoch']}, step {step}, rank {record['rank']}"
            passes = found.samples.setdefault(where, {})
            passes[f"the sample ids of pass {record['of_pass']}"] = record["ids"]
        elif kind in ("train", "eval"):
            names = _COMPARED if kind == "train" else [name for name in record if name not in _POSITION]
            values = {name: repr(record[name]) for name in names if name in record}
            found.curve[f"step {step}" + ", evaluation" * (kind == "eval")] = values
            found.steps = max(found.steps, step)
            if struck_at is None:
                before = found.steps
            elif found.lost_s is None and step > before:
                found.lost_s = record["time"] - struck_at
        elif kind == "fault":
            struck_at, found.strike = record["time"], (step, record["rank"])
        elif kind == "resumed":
            where = "from memory" if record.get("in_memory") else record["checkpoint"] or "from the start"
            found.resumed = f"step {step}, {where}"
            found.lost_steps += record["redone_steps"]


def _lines_of_rank_zero(attempt: Attempt) -> Iterable[str]:
    hosts = (host for event in events_of_attempt(attempt) if (host := host_of(event, 0)) is not None)
    for host in dict.fromkeys(hosts):
        for line in Tail(attempt.run, attempt.rank_log_key(host, 0)).new_lines():
            yield from line.decode(errors="replace").replace("\r", "\n").splitlines()


def _read_lines(found: RunFingerprint, lines: Iterable[str], loss: str) -> None:
    """Read the losses that a script printed.

    A line is known by its epoch, step and batch, as far as it has them; otherwise by its number.
    """
    for match in filter(None, map(re.compile(loss).search, lines)):
        counted = match.groupdict().get("step") or " ".join(map(" ".join, _COUNTED.findall(match.string)))
        word = re.split(r"\W", match[0], maxsplit=1)[0]
        key = f"{counted or len(found.curve) + 1}, {word}".lower()
        found.lost_steps += key in found.curve
        found.curve[key] = {"loss": match["loss"]}
        found.steps = len(found.curve)
