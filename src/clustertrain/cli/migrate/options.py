"""The options of sbatch, srun and the launchers: the key that each sets, and how its value is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from clustertrain.cli.migrate.found import Found
from clustertrain.node.units import duration_s, duration_text, size_bytes

Rows = Mapping[str, tuple[str, Callable[[str], Any] | None]]
"""By its name: the key, where @ is a size, and the function that reads the value; None for a switch."""


def read_options(words: list[str], rows: Rows, found: Found) -> list[str]:
    """Read the options at the beginning of the words, and return the words from the program on."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--") and len(name) > 1 and name[0] in _LONG:  # -N4
            name, equals, value = name[0], "=", word[2:].removeprefix("=")
        name = _LONG.get(name, name).replace("_", "-")
        key, read = rows.get(name, ("", str))
        may_be_switch = name not in rows and (not rest or _is_program(rest[0]))
        text = word
        if not equals and read is not None and rest and not may_be_switch and not rest[0].startswith("-"):
            value = rest.pop(0)
            text = f"{word} {value}"
        try:
            if name in rows:
                found.set(key, True if read is None else read(value))
            elif not name.startswith(_DONE):
                found.leave_out(text)
        except ValueError:
            found.leave_out(text, "its value is not one that clustertrain can read")
    return rest


def _is_program(word: str) -> bool:
    return bool(re.fullmatch(r"(.*/)?(python[\d.]*|torchrun|accelerate|bash|sh)|.*\.py", word))


# ------------------------------------------------------------------------------------------- values


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("less than 1")
    return number


def _count_or_gpus(text: str) -> int | str:
    return "gpu" if text in ("gpu", "auto") else _count(text)


def _count_or_range(text: str) -> int | list[int]:
    """Read a count, such as 2, or a range: 1:4 of torchrun, 1-4 of sbatch."""
    bounds = [_count(part) for part in re.split("[:-]", text)]
    if len(bounds) > 2 or bounds != sorted(bounds):
        raise ValueError("not a range")
    return bounds[0] if len({*bounds}) == 1 else bounds


def _time(text: str) -> str:
    """Convert a time limit of SLURM to the notation of a job file.

    SLURM reads minutes, minutes:seconds, h:m:s, days-hours, days-hours:minutes, d-h:m:s.
    """
    parts = 3 if "-" in text else 2
    return duration_text(duration_s(text + ":00" * (parts - len(text.split(":")))))


def _memory(text: str) -> int:
    """Return a size in bytes; SLURM's units are powers of 1024, and a bare number is MiB."""
    match = re.fullmatch(r"([1-9]\d{0,14})([KMGT]?)B?", text, re.IGNORECASE | re.ASCII)
    if not match:
        raise ValueError("not a size")
    return size_bytes(f"{match[1]}{(match[2] or 'M').upper()}i")


def _gpus(text: str) -> int:
    """Return the number of GPUs in `4`, `a100:4` or `a100`."""
    number = text.rpartition(":")[2]
    return _count(number) if number.isdecimal() else 1


def _gpus_of_gres(text: str) -> int:
    """Return the number of GPUs in `gpu:a100:4`, `gpu:4` or `gpu`, and refuse other resources."""
    if text.partition(":")[0] != "gpu":
        raise ValueError("not GPUs")
    return _gpus(text)


# ------------------------------------------------------------------------------------------- tables

_LONG = {  # of sbatch and srun
    **{"J": "job-name", "p": "partition", "A": "account", "q": "qos", "C": "constraint", "t": "time"},
    **{"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "d": "dependency", "D": "chdir"},
    **{"w": "nodelist", "x": "exclude", "L": "licenses"},
}
_DONE = (  # by clustertrain: how the names of options begin
    *("rdzv", "master-", "node-rank", "standalone", "local-addr", "machine-rank", "main-process", "use-env"),
    *("same-network", "multi-gpu", "requeue", "open-mode", "kill-on-bad-exit"),
)
_WORDS = ("partition", "account", "qos", "reservation", "constraint", "dependency")
_PASSED_ON = ("mail-type", "mail-user", "nodelist", "exclude", "comment", "begin", "licenses", "nice")
SIZES: Rows = {
    "nodes": ("@nodes", _count_or_range),
    "ntasks": ("@tasks", _count),
    "ntasks-per-node": ("@node_tasks", _count),
    "cpus-per-task": ("@task_cpus", _count),
    "gres": ("@node_gpus", _gpus_of_gres),
    "gpus-per-node": ("@node_gpus", _gpus),
    "gpus": ("@gpus", _gpus),
    "gpus-per-task": ("@task_gpus", _gpus),
    "mem": ("@node_memory", _memory),
    "mem-per-cpu": ("@cpu_memory", _memory),
}
SBATCH: Rows = {
    **SIZES,
    "job-name": ("name", str),
    **{name: (f"slurm.{name}", str) for name in _WORDS},
    "time": ("slurm.time_limit", _time),
    "exclusive": ("slurm.exclusive", None),
    "chdir": ("code", str),
    **{name: ("slurm.options[]", f"--{name}={{}}".format) for name in _PASSED_ON},
}
_MODULE: Rows = {"m": ("@is_module", None), "module": ("@is_module", None)}
TORCHRUN: Rows = {
    **_MODULE,
    "nproc-per-node": ("@node_processes", _count_or_gpus),
    "nnodes": ("@nodes", _count_or_range),
    "max-restarts": ("failures.retries", int),
}
ACCELERATE: Rows = {
    **_MODULE,
    "num-processes": ("@processes", _count),
    "num-machines": ("@nodes", _count),
    "cpu": ("@is_cpu", None),
    "mixed-precision": ("env.ACCELERATE_MIXED_PRECISION", str),
}
PYTHON: Rows = {"m": ("@is_module", None), "u": ("@is_unbuffered", None)}
