"""What was found in a script or a command: keys of the job, sizes, and the pieces that become neither."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from clustertrain.job.values import is_secret_key, is_secret_text
from clustertrain.node.units import shortened

_TOKEN = re.compile(
    r"\b(hf_|sk-|ghp_|glpat-|AKIA)[\w-]{12,}|\b(login|Bearer|--token|--password)\b|://[^/\s]*:[^/\s]*@"
)
_SECRET = (
    "a secret is not copied: set it in the environment; slurm.environment or kubernetes.secrets pass it on"
)


@dataclass
class Found:
    """Grows with each line that is read.

    Attributes:
        source: the file, or the command.
        line: that of the file which is read now; 0 for a command.
        keys: of the job, by their path: `slurm.partition`.
        sizes: what another launcher says about nodes, processes and GPUs, by the names of options.py.
        left_out: for people: what is not in the job file, and why.
    """

    source: str = ""
    line: int = 0
    keys: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def set(self, key: str, value: object) -> None:
        """Set a key of the job, or a size if the key begins with @. A key that ends with [] gets one more."""
        if key.startswith("@"):
            self.sizes[key[1:]] = value
        elif key.endswith("[]"):
            self.keys.setdefault(key[:-2], []).append(value)
        else:
            self.keys[key] = value

    def add(self, launch: Found) -> None:
        """Add what the launch says; it counts more than what was there before."""
        self.keys |= launch.keys
        self.sizes |= launch.sizes
        self.left_out += launch.left_out

    def leave_out(self, text: str, why: str = "") -> None:
        """Say that a piece is not in the job file."""
        if contains_secret(text):
            text, why = "…", _SECRET
        place = f"line {self.line}: " if self.line else ""
        self.left_out.append(f"{place}{shortened(text, 100)}" + (f": {why}" if why else ""))


def contains_secret(text: str) -> bool:
    """Return whether a text looks like a token, is a command that takes one, or gives a name its secret."""
    given = re.findall(r"(?:\b([\w-]+)=|-+([\w-]+)\s+(?!-))['\"]?([^\s$`'\"]+)", text)
    return _TOKEN.search(text) is not None or any(
        _is_secret(name or key, value) for name, key, value in given
    )


def _is_secret(name: str, value: str) -> bool:
    return (is_secret_text(name, value) or is_secret_key(name)) and value.lower() not in ("true", "false")
