"""A file or a command of another launcher → `Launch`, or the lines that are not understood."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clustertrain.errors import JobError
from clustertrain.job.yaml_reader import text_of
from clustertrain.migrate.finding import Finding, Kind
from clustertrain.migrate.launch_line import launch_in
from clustertrain.migrate.manifest import manifest_findings
from clustertrain.migrate.python_program import program_findings
from clustertrain.migrate.shell_script import ShellScript
from clustertrain.units import shortened

_READS = (
    "import reads a shell script, a PyTorchJob, TrainJob or RayJob, a Python program, or -- and a command"
)
_MOST_SHOWN = 20


@dataclass(frozen=True)
class Launch:
    """A training as another launcher starts it.

    Attributes:
        source: the file, or the command.
        in_pods: whether paths are those of an image.
    """

    source: str
    findings: tuple[Finding, ...]
    in_pods: bool = False


def launch_of_file(path: Path) -> Launch:
    """The launch of a file.

    Raises:
        JobError: it cannot be read, has no launch or several, or lines that are not understood.
    """
    text = _text_of(path)
    try:
        return _checked(_launch(path, text))
    except RecursionError:
        raise JobError(f"{path}: it is nested too deeply\n{_READS}") from None


def _launch(path: Path, text: str) -> Launch:
    if path.suffix == ".py":
        found = program_findings(text, path.name)
        if found is None:
            what = f"{path}: starts no ranks: it calls neither mp.spawn nor TorchTrainer"
            raise JobError(f"{what}\nimport the command that starts it: -- torchrun {path}")
        return Launch(str(path), tuple(found))
    if path.suffix in (".yaml", ".yml") or re.search(r"(?m)^apiVersion:", text):
        found = manifest_findings(text, str(path))
        if found is None:
            raise JobError(f"{path}: is no PyTorchJob, TrainJob or RayJob\n{_READS}")
        return Launch(str(path), tuple(found), in_pods=True)
    is_batch = re.search(r"(?m)^#SBATCH\s", text) is not None
    script = ShellScript(setup=True, cluster=is_batch, folder=os.path.relpath(path.parent))
    script.read(text)
    return Launch(str(path), tuple(script.findings))


def launch_of_command(words: Sequence[str]) -> Launch:
    """The launch of a command line. Raises as `launch_of_file`."""
    program = next((word for word in words if "=" not in word), "")
    script = ShellScript(setup=True, cluster=False)
    found = launch_in(["env", *words], 0, script.read)
    return _checked(Launch(f"the command {program}", tuple(found or ())))


def _text_of(path: Path) -> str:
    try:
        text = text_of(path)
    except JobError as error:
        raise JobError(f"{str(error).splitlines()[0]}\n{_READS}") from None
    if "\0" in text or not text.strip():
        raise JobError(f"{path}: is {'no text' if text.strip() else 'empty'}\n{_READS}")
    return text


def _checked(launch: Launch) -> Launch:
    """
    Raises:
        JobError: something was not understood, or there is not exactly one launch.
    """
    if unknown := [finding for finding in launch.findings if finding.kind is Kind.UNKNOWN]:
        lines = "".join(f"\n  {finding}" for finding in unknown[:_MOST_SHOWN])
        more = f"\n  and {len(unknown) - _MOST_SHOWN} more" if len(unknown) > _MOST_SHOWN else ""
        what = f"{launch.source}: not all of it was understood, and nothing was written:{lines}{more}"
        raise JobError(f"{what}\nleave it out, and import the rest")
    starts = [each for each in launch.findings if any(key == "args" for key, _ in each.settings)]
    if not starts:
        raise JobError(f"{shortened(launch.source)}: no launch was found in it\n{_READS}")
    of_lines = {
        start.line: [each.settings for each in launch.findings if each.line == start.line] for start in starts
    }
    if len({str(settings) for settings in of_lines.values()}) > 1 or len(starts) > len(of_lines):
        places = "".join(f"\n  {start}" for start in starts[:_MOST_SHOWN])
        what = f"{launch.source}: there are several launches, and a job file has one:{places}"
        raise JobError(f"{what}\nimport each from a file of its own, or with -- and its command")
    return launch
