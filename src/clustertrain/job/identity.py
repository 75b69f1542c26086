"""The identity of a run: the keys of a job that determine its results, and their hash."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from clustertrain.job.model import Job
from clustertrain.job.values import is_secret_text

# Keys of train that change the length or the output of a run, but none of its results.
FREE_TRAIN_KEYS = {
    *("epochs", "steps", "early_stop", "log_every", "log", "eval_every", "compare_weights_every"),
    *("loader_workers", "sanity", "profile"),
}

_OPTION = re.compile(r"--|-[A-Za-z]")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Change:
    """A key of the identity with two values, each as JSON, or "absent"."""

    key: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.key}: {self.old} → {self.new}"


def identity(job: Job) -> dict[str, Any]:
    """Return the values that identify a run, as flat dotted keys.

    They are the entry point, args, data and the arithmetic of `train`. A data set with a checksum is
    identified by the checksum, not by its URI.
    """
    dumped = job.model_dump(mode="json", by_alias=True)
    parts = {
        key: dumped[key]
        for key in ("task", "function", "script", "module", "args", "data", "train")
        if dumped[key]
    }
    for name, entry in dumped["data"].items():
        where = "sha256" if entry["sha256"] else "uri"
        parts["data"][name] = {where: entry[where], "extract": entry["extract"]}
    if job.train:
        parts["train"] = {key: value for key, value in dumped["train"].items() if key not in FREE_TRAIN_KEYS}
    return dict(_flat(parts))


def hyperparameters(*jobs: Job) -> dict[str, str | int | float]:
    """Return the args and the keys of `train`, by the names that `--set` takes, such as `args.lr`.

    Of a script, `args.lr` is its option `--lr`. Lists and booleans are JSON; keys without a value are left
    out, and a secret is shown as `***`. Of several jobs a key has each of its values, such as `0.01, 1.0`.
    """
    found: dict[str, dict[str | int | float, None]] = {}
    for key, value in (item for job in jobs for item in _hyperparameters(job).items()):
        found.setdefault(key, {})[value] = None
    return {
        key: next(iter(values)) if len(values) == 1 else ", ".join(map(str, values))
        for key, values in found.items()
    }


def _hyperparameters(job: Job) -> dict[str, str | int | float]:
    if not isinstance(job.args, dict):
        return {f"args.{name}": _masked(value, name) for name, value in script_options(job.args).items()}
    return {key: value for key, value in settings(job).items() if key.startswith(("args.", "train."))}


def script_options(args: Sequence[str]) -> dict[str, str | int | float]:
    """Return the options of a command line: `--lr 0.1`, `--lr=0.1` and `--amp`, which is "true"."""
    found = {}
    for at, size in _options(args):
        name, _, joined = args[at][2:].partition("=")
        value = joined if "=" in args[at] else args[at + 1] if size > 1 else "true"
        found[name] = json.loads(value) if _NUMBER.fullmatch(value) else value
    return found


def with_option(args: Sequence[str], name: str, value: str) -> tuple[str, ...]:
    """Return the command line with `--NAME VALUE`: in the place of the option, or at the end."""
    changed = [*args]
    places = [each for each in _options(args) if args[each[0]].partition("=")[0] == f"--{name}"]
    for at, size in reversed(places or [(len(args), 0)]):
        changed[at : at + size] = [f"--{name}", value]
    return tuple(changed)


def _options(args: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the position of each option and its length: 2 if its value is the next argument, otherwise 1."""
    for at, arg in enumerate(args):
        if arg.startswith("--"):
            has_next = "=" not in arg and len(args) > at + 1 and not _OPTION.match(args[at + 1])
            yield at, 1 + has_next


def settings(job: Job) -> dict[str, str | int | float]:
    """Return all keys of a job, in the form of `hyperparameters`."""
    flat = _flat(_masked(job.model_dump(mode="json", by_alias=True)))
    return {
        key: value if isinstance(value, str | int | float) and not isinstance(value, bool) else as_json(value)
        for key, value in flat
        if value is not None
    }


def identity_difference(old: Job, new: Job) -> list[Change]:
    """Return the keys of the identity that differ, such as `train.seed: 0 → 1`; keys of `old` come first."""
    before, after = ({key: as_json(value) for key, value in identity(job).items()} for job in (old, new))
    return [
        Change(key, before.get(key, "absent"), after.get(key, "absent"))
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    ]


def needs_consent(change: Change, job: Job) -> bool:
    """Return whether a run with a checkpoint continues with this change only if the user accepts it.

    The arguments of a script may change: the script itself decides what they mean for its checkpoints.
    """
    return not job.is_script or change.key != "args"


def job_hash(job: Job) -> str:
    """Return the sha256, in hex, of the identity as canonical JSON.

    Two jobs have the same one exactly when identity_difference is empty.
    """
    return hashlib.sha256(as_json(identity(job)).encode("utf-8", "surrogatepass")).hexdigest()


def as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _masked(value: Any, name: str = "") -> Any:
    """Return the value with `***` for each text that is a secret by its name, or contains one."""
    if isinstance(value, dict):
        return {key: _masked(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner, name) for inner in value]
    return "***" if isinstance(value, str) and is_secret_text(name, value) else value


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and (value or not prefix):
        for key, inner in value.items():
            name = key if re.fullmatch(r"[\w-]+", key) else as_json(key)
            yield from _flat(inner, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix, value
