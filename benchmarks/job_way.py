"""Counts the functions that get a job in the process of a command, and the calls back to a higher layer.

    python benchmarks/job_way.py run JOB.yaml
    python benchmarks/job_way.py render --to kubernetes JOB.yaml

Runs the command in this process under `sys.setprofile`. A function counts if one of its arguments, or a
variable of the function around it, is a `Job`. A call climbs if both functions have the job and the called
one is in a higher layer of `[tool.importlinter]` (pyproject.toml): a callback. `--list` before the command
prints them.
"""

from __future__ import annotations

import re
import sys
import threading
import tomllib
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import clustertrain
from clustertrain.job.model import Job

SRC = Path(clustertrain.__file__).parent
ROOT = SRC.parent.parent


def layers() -> dict[str, int]:
    """The height of each folder and file of src/clustertrain in the contract of layers; the lowest is 0."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (lines,) = [c["layers"] for c in contracts if c.get("containers") == ["clustertrain"]]
    return {name: height for height, line in enumerate(reversed(lines)) for name in re.findall(r"\w+", line)}


class Way:
    """The functions that had the job, and the calls from a lower to a higher layer."""

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()
        self.climbs: set[tuple[CodeType, CodeType]] = set()
        self._heights = layers()

    def trace(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not self._has_job(frame):
            return
        self.functions.add(frame.f_code)
        caller = frame.f_back
        while caller is not None and not self._is_ours(caller.f_code):
            caller = caller.f_back
        if caller is None or not self._has_job(caller):
            return
        if self._height(frame.f_code) > self._height(caller.f_code):
            self.climbs.add((caller.f_code, frame.f_code))

    def _has_job(self, frame: FrameType) -> bool:
        code = frame.f_code
        if not self._is_ours(code) or code.co_name.startswith("<"):
            return False
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] + code.co_freevars
        return any(isinstance(frame.f_locals.get(name), Job) for name in names if name not in ("self", "cls"))

    def _is_ours(self, code: CodeType) -> bool:
        return code.co_filename.startswith(str(SRC))

    def _height(self, code: CodeType) -> int:
        first = Path(code.co_filename).relative_to(SRC).parts[0].removesuffix(".py")
        return self._heights[first]


def shown(code: CodeType) -> str:
    return f"{Path(code.co_filename).relative_to(SRC)}:{code.co_qualname}"


def main() -> None:
    arguments = sys.argv[1:]
    is_list = arguments[:1] == ["--list"]
    from clustertrain.cli.main import main as command

    way = Way()
    threading.setprofile(way.trace)
    sys.setprofile(way.trace)
    try:
        command(arguments[is_list:], standalone_mode=False)
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
        report(way, is_list)


def report(way: Way, is_list: bool) -> None:
    files = {code.co_filename for code in way.functions}
    lines = [
        f"{len(way.functions)} functions in {len(files)} files have the job; {len(way.climbs)} calls climb"
    ]
    if is_list:
        lines += sorted(map(shown, way.functions))
        lines += sorted(f"climb: {shown(lower)} -> {shown(higher)}" for lower, higher in way.climbs)
    print(*lines, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
