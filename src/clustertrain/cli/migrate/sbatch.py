"""A script for sbatch: its #SBATCH lines, the lines that become slurm.setup, and its launch line."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from clustertrain.cli.migrate.found import Found, contains_secret
from clustertrain.cli.migrate.launch_line import OWN_VARIABLES, commands_of, launch_of
from clustertrain.cli.migrate.options import SBATCH, read_options
from clustertrain.errors import JobError
from clustertrain.job.yaml_reader import text_of
from clustertrain.node.units import shortened

_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SETUP = re.compile(
    r"(module|ml|source|\.|export|cd|conda|mamba|spack|ulimit|umask|unset)\s|eval |[A-Za-z_]\w*=(?!\()"
)
_FINDS_ADDRESSES = re.compile(r"\bscontrol show hostname|\bhostname\b|NODELIST")
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_OF_SLURM = {"SLURM_NNODES": "nodes", "SLURM_JOB_NUM_NODES": "nodes", "SLURM_NTASKS": "tasks"}
_OF_SLURM |= {"SLURM_NTASKS_PER_NODE": "node_tasks", "SLURM_CPUS_PER_TASK": "task_cpus"}
_OF_SLURM |= {"SLURM_GPUS_ON_NODE": "node_gpus", "SLURM_GPUS_PER_NODE": "node_gpus"}
_GPU_TYPE = re.compile(r"\b(?:gpu:|gpus[\w-]*[= ])([A-Za-z][\w.-]*)")
_HINT = "import reads a script for sbatch with one launch line, or -- and that line: -- torchrun train.py"


def found_in_command(words: list[str]) -> Found:
    """Return what a command says.

    Raises:
        JobError: it starts no training.
    """
    found = launch_of(words, 0)
    if found is None:
        raise JobError(f"{shortened(words[0])}: no launch was found in this command\n{_HINT}")
    found.source = f"the command {words[0]}"
    return found


def found_in_script(path: Path) -> Found:
    """Return what a script says.

    Raises:
        JobError: it cannot be read, or has not exactly one launch line.
    """
    found, variables = Found(str(path)), dict[str, str]()
    launches: list[int] = []
    for found.line, line in _lines(text_of(path)):
        if line.startswith("#SBATCH"):
            words = re.sub(r"^#SBATCH|\s#.*|[\"']", "", line).split()
            for word in read_options(words, SBATCH, found):
                found.leave_out(word)
            if (kind := _GPU_TYPE.search(" ".join(words))) is not None:
                found.set("slurm.gpu_type", kind[1])
            continue
        commands = commands_of(_expanded(line, variables, found.sizes))
        starts = [(launch_of(words, found.line), words) for words in commands]
        of_line = [launch for launch, _ in starts if launch is not None]
        launches += [found.line] * len(of_line)
        if of_line:
            found.add(of_line[0])
            for words in (words for launch, words in starts if launch is None):
                found.leave_out(shlex.join(words))
        elif launches:
            found.leave_out(line.strip(), "it runs after the training")
        else:
            _set_up(line, found)
            variables |= _assigned(line, commands)
    if len(launches) != 1:
        raise JobError(f"{path}: launch lines found: {', '.join(map(str, launches)) or 'none'}\n{_HINT}")
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers, without empty lines and comments other than #SBATCH.

    A backslash at the end joins two.
    """
    first, joined = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        first = first if joined else number
        joined += line.rstrip()
        if joined.endswith("\\"):
            joined = f"{joined[:-1]} "
            continue
        if joined.strip() and (not joined.strip().startswith("#") or joined.startswith("#SBATCH ")):
            yield first, joined
        joined = ""


def _expanded(text: str, variables: Mapping[str, str], sizes: Mapping[str, object]) -> str:
    """Return the text with the values of the variables that are known."""
    known = {name: str(sizes[size]) for name, size in _OF_SLURM.items() if size in sizes}
    known |= variables
    return _REFERENCE.sub(lambda found: known.get(found[1] or found[2], found[0]), text)


def _assigned(line: str, commands: list[list[str]]) -> dict[str, str]:
    """Return the variable that the line sets, unless its value is a secret or the output of a command."""
    found = _ASSIGNMENT.fullmatch(line)
    if found is None or len(commands) != 1 or re.search(r"\$\(|`", line) or contains_secret(line):
        return {}
    return {found[1]: commands[0][-1].partition("=")[2]}


def _set_up(line: str, found: Found) -> None:
    """Add a line before the launch to `slurm.setup`, or leave it out; a plain `cd` also sets `code`."""
    assigned = _ASSIGNMENT.fullmatch(line)
    is_address = assigned and (OWN_VARIABLES.fullmatch(assigned[1]) or _FINDS_ADDRESSES.search(assigned[2]))
    is_plain = _SETUP.match(line) and commands_of(line) and not re.search(r"\$[\d@*]", line)
    if is_address or contains_secret(line) or not is_plain:
        found.leave_out(line.strip())
        return
    found.set("slurm.setup[]", line)
    if (folder := re.fullmatch(r"cd ([^$~`'\"&;|]+)", line)) is not None:
        found.set("code", posixpath.join(found.keys.get("code", "."), folder[1]))
