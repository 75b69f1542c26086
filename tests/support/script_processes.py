"""A script's process, run as a rank runs it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from clustertrain.training.ranks.host import Requests
from clustertrain.worker.scripts.script import run_script
from clustertrain.worker.scripts.script_command import Program


@dataclass
class ScriptRun:
    """The part of a WorkerRun that a script needs, with its notes in a list."""

    rank: int = 0
    stop_requested: Callable[[], bool] = lambda: False
    stop_exists: Callable[[], bool] = lambda: False
    stop_in_s: Callable[[], float] = lambda: 0.0
    notes: list[tuple[str, str]] = field(default_factory=list)
    strike: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(printed=lambda line: None))

    def follow(self) -> None:
        """Take nothing of what the script logs."""

    def requests(self) -> Requests:
        return Requests(self.stop_requested())

    def note(self, kind: str, text: str) -> None:
        self.notes.append((kind, text))


def ran_script(
    program: Program,
    folder: Path,
    *,
    environment: dict[str, str] | None = None,
    grace_s: float = 1.0,
    **options: object,
) -> bool:
    """Run it to its end, and return whether it finished; `options` are those of a ScriptRun."""
    run, of_job = ScriptRun(**options), environment or {}
    return run_script(program, run, environment=of_job, cwd=folder, code_folder=folder, grace_s=grace_s)
