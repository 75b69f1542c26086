"""What becomes of each option of another launcher: the rows of options.yaml, and how values are read."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from clustertrain.job.yaml_reader import JobLoader
from clustertrain.migrate.finding import Finding, Kind, kept, lost, variable
from clustertrain.units import duration_s, duration_text, size_bytes


@dataclass(frozen=True)
class Option:
    """A row of options.yaml, which describes the columns."""

    names: str
    key: str = ""
    read: str = ""
    also: dict[str, object] = field(default_factory=dict)
    done: str = ""
    lost: str = ""
    meaning: str = ""
    values: int = 1
    shown: str = ""

    @property
    def kind(self) -> Kind:
        return Kind.DONE if self.done else Kind.LOST if self.lost else Kind.KEPT

    def found(self, line: int, text: str, name: str, value: str) -> Finding:
        """What becomes of the option with this name and value."""
        variable_name, is_set, inner = value.partition("=")
        if self.key == "env":
            done = Finding(line, text, Kind.DONE, self.meaning)
            return variable(line, variable_name, inner) if is_set else done
        if self.kind is not Kind.KEPT:
            return Finding(line, text, self.kind, self.done or self.lost)
        if self.key == "slurm.options[]":
            long = name if len(name) > 1 else self.names.split()[0]
            return kept(line, text, {self.key: f"--{long}={value}" if self.values else f"--{long}"})
        try:
            result = READS[self.read](value) if self.read else value
        except ValueError:
            why = (
                "known only when it runs: write it there"
                if "$" in value
                else "not one that clustertrain can read"
            )
            return Finding(line, text, Kind.UNKNOWN, f"its value is {why}")
        if result is None:
            return lost(line, text, "no limit, or all that there is: no key means that")
        found = result if isinstance(result, Mapping) else {"": result}
        settings = {key or self.key: each for key, each in found.items()}
        return kept(line, text, settings | self.also, self.meaning)


@cache
def table(*names: str) -> tuple[Option, ...]:
    """The rows of these tables."""
    text = files(__package__).joinpath("options.yaml").read_text("utf-8")
    tables = yaml.load(text, JobLoader)
    return tuple(Option(**row) for name in names for row in tables[name])


def split_options(
    words: Sequence[str], table: Sequence[Option], line: int
) -> tuple[list[Finding], list[str]]:
    """The findings of the options at the beginning, and the words from the program on."""
    by_name = {name: option for option in table for name in option.names.split()}
    findings, rest = [], list(words)
    while rest and rest[0].startswith("-") and rest[0].strip("-"):
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        option = by_name.get(name.replace("_", "-"))
        if option is None and word[1] in by_name:  # -N4, or two options: -lu
            name, equals, value = word[1], "=", word[2:].removeprefix("=")
            option = by_name[name]
            if not option.values and value.isalpha():
                word, rest = word[:2], [f"-{value}", *rest]
        if option is None:
            findings.append(Finding(line, word, Kind.UNKNOWN, "clustertrain does not know this option"))
            continue
        text = word
        if not equals and option.values:
            value, rest = " ".join(rest[: option.values]), rest[option.values :]
            text = f"{word} {value}"
        findings.append(option.found(line, text, name.replace("_", "-"), value))
    return findings, rest[1:] if rest[:1] == ["--"] else rest


# ------------------------------------------------------------------------------------------- values


def count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("less than 1")
    return number


def count_or_gpus(text: str) -> int | str:
    """`gpu` and `auto` are as many as there are GPUs."""
    return "gpu" if text in ("gpu", "auto") else count(text)


def count_or_range(text: str) -> int | list[int]:
    """2, or the range 1:4 of torchrun or 1-4 of sbatch."""
    bounds = [count(part) for part in re.split("[:-]", text)]
    if len(bounds) > 2 or bounds != sorted(bounds):
        raise ValueError("not a range")
    return bounds[0] if len({*bounds}) == 1 else bounds


def flag(text: str) -> bool:
    return text.lower() not in ("false", "no", "0")


def hosts(text: str) -> dict[str, object]:
    """The nodes of `host1:4,host2:4`, or of lines `host1 slots=4`, and the processes on each."""
    slots = re.findall(r"[^\s,:]+(?::|[ \t]+slots=)(\d+)", text)
    nodes = len(slots) or len(re.findall(r"[^\s,]+", text))
    if not nodes:
        raise ValueError("no hosts")
    return {"@nodes": nodes, **({"@per_node": count(min(slots, key=int))} if slots else {})}


def slurm_time(text: str) -> str | None:
    """A time limit of SLURM: minutes, minutes:seconds, h:m:s, days-hours, days-hours:minutes, d-h:m:s."""
    if text.lower() in ("infinite", "unlimited", "0"):
        return None
    parts = 3 if "-" in text else 2
    return duration_text(duration_s(text + ":00" * (parts - len(text.split(":")))))


def slurm_memory(text: str) -> int | None:
    """Bytes; SLURM's units are powers of 1024, and a bare number is MiB. 0 is all memory of the node."""
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)B?", text, re.IGNORECASE | re.ASCII)
    if not match:
        raise ValueError("not a size")
    return size_bytes(f"{match[1]}{(match[2] or 'M').upper()}i") or None


def gpus(text: str) -> dict[str, object]:
    """`gpu:a100:4`, `gpu:4`, `gpu`, or only `a100:4` and `4` of --gpus-per-node."""
    *kind, number = text.removeprefix("gres/").removeprefix("gpu").lstrip(":").split(":")
    if not re.fullmatch(r"\d+", number, re.ASCII):
        kind, number = [*kind, *([number] if number else [])], "1"
    if len(kind) > 1 or not re.fullmatch(r"[\w.-]*", "".join(kind)):
        raise ValueError("not GPUs")
    return {"": count(number)} | ({"slurm.gpu_type": kind[0]} if kind else {})


def gres(text: str) -> dict[str, object]:
    """The GPUs of --gres, whose value may also be another resource, such as `tmpdisk:100`."""
    if not re.match("(gres/)?gpu(:|$)", text):
        raise ValueError("not GPUs")
    return gpus(text)


def lead_time(text: str) -> str | None:
    """The seconds of `B:USR1@120`."""
    after = text.partition("@")[2]
    return seconds(after) if after else None


def folder(text: str) -> dict[str, object]:
    """The folder of an output file, if it is the same for all jobs."""
    parent = posixpath.dirname(text)
    return {"slurm.output": parent} if parent and not re.search("[%$]", parent) else {}


def mounts(text: str) -> list[str]:
    return [each if ":" in each else f"{each}:{each}" for each in text.split(",")]


def cpus(text: str) -> float:
    """A number of Kubernetes: 2, or 500m."""
    number = float(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
    if not 0 < number < 1e6:
        raise ValueError("not a number of CPUs")
    return number


def seconds(text: str) -> str:
    return duration_text(float(count(text)))


_READS: tuple[Callable[[str], Any], ...] = (
    *(count, count_or_gpus, count_or_range, int, size_bytes, seconds, cpus, flag, hosts),
    *(slurm_time, slurm_memory, gpus, gres, lead_time, folder, mounts),
)
READS = {read.__name__: read for read in _READS}
