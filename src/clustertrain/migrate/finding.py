"""What was found in a file of another launcher: each piece of it, and what becomes of it.

A finding that sets keys of the job has `settings`: `slurm.partition`, `env.NAME`; `slurm.setup[]` adds
an item to a list, and `@nodes` is a field of shape.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from clustertrain import variables
from clustertrain.job.values import is_secret_key, is_secret_text
from clustertrain.units import shortened


class Kind(StrEnum):
    KEPT = "kept"
    DONE = "done by clustertrain"
    LOST = "no counterpart"
    UNKNOWN = "not understood"


@dataclass(frozen=True)
class Finding:
    """A piece of a file.

    Attributes:
        line: the line in the file, from 1; 0 if it is about the whole.
        text: the piece as it is written, without secrets.
        meaning: what clustertrain does instead, or what is left to the user.
        settings: the keys of the job that it sets, with their values.
    """

    line: int
    text: str
    kind: Kind
    meaning: str = ""
    settings: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        keys = " and ".join(dict.fromkeys(shown_key(key) for key, _ in self.settings))
        place = f"line {self.line}: " if self.line else ""
        meaning = shortened(self.meaning or keys, 300)  # one line, as a comment has to be
        return f"{place}{shortened(self.text, 100)}" + (f": {meaning}" if meaning else "")


SECRET = (
    "a secret is not copied: set it in the environment; slurm.environment or kubernetes.secrets pass it on"
)
_TOKEN = re.compile(
    r"\b(hf_|sk-|ghp_|glpat-|AKIA)[\w-]{12,}|\b(login|Bearer|--token|--password)\b|://[^/\s]*:[^/\s]*@"
)
_RENDEZVOUS = {
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE"),
    *("LOCAL_WORLD_SIZE", "RDZV_ENDPOINT", "RAY_ADDRESS", "RAY_USAGE_STATS_ENABLED"),
}
ADDRESS = "clustertrain finds addresses, ports and ranks"


def kept(line: int, text: str, settings: Mapping[str, object], meaning: str = "") -> Finding:
    return Finding(line, text, Kind.KEPT, meaning, tuple(settings.items()))


def lost(line: int, text: str, meaning: str) -> Finding:
    return Finding(line, text, Kind.LOST, meaning)


def variable(line: int, name: str, value: str) -> Finding:
    """What becomes of an environment variable; the value of a secret is not in it."""
    if _is_secret(name, value) or contains_secret(value):
        return lost(line, f"{name}=…", SECRET)
    text = f"{name}={value}"
    if name in _RENDEZVOUS or name.startswith(("PET_", variables.PREFIX, "RAY_AUTH_")):
        return Finding(line, text, Kind.DONE, ADDRESS)
    if name in ("CUDA_VISIBLE_DEVICES", "PATH"):
        where = "GPUs are given to the workers" if name != "PATH" else "its value is that of the node"
        return lost(line, text, f"{where}: to change it, set it in the shell that starts the run")
    if "$" in value:
        return lost(line, text, f"its value is known only where it runs: write it as env.{name}")
    return kept(line, text, {f"env.{name}": value})


def contains_secret(text: str) -> bool:
    """Whether a text has the form of a token, is a command that takes one, or sets a variable to one."""
    names = re.finditer(r"(\w+)=([^\s$`]+)", text)
    return _TOKEN.search(text) is not None or any(_is_secret(match[1], match[2]) for match in names)


def _is_secret(name: str, value: str) -> bool:
    return is_secret_text(name, value) or is_secret_key(name)


def settings_of(findings: Iterable[Finding]) -> Iterator[tuple[str, object]]:
    """All settings, in the order of the file: the last of a key counts."""
    return (setting for finding in findings for setting in finding.settings)


def shown_key(key: str) -> str:
    """The key of the job, for people."""
    return "resources" if key.startswith("@") else key.removesuffix("[]")
