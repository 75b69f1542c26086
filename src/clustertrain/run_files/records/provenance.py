"""From what an attempt was started: code, packages and machine, and what changed in the job and its code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clustertrain.job.identity import Change
from clustertrain.node.version import __version__

_MOST_NAMES = 3  # of files in a line


@dataclass(frozen=True)
class JobChanges:
    """The differences between the job of an attempt and the job of the attempt before.

    Attributes:
        step, checkpoint: of the newest checkpoint when the attempt was claimed; 0 and None if the run had
            none. Both are None for a script that had a file in its checkpoint folder.
        keys: the keys of the run's identity that differ.
        of_script: the run is that of a script, whose steps are unknown.
    """

    step: int | None
    checkpoint: str | None
    keys: tuple[Change, ...]
    of_script: bool = False

    @property
    def starts_over(self) -> bool:
        """Whether the changed job replaces the old one, of which there was no checkpoint."""
        return self.checkpoint is None and self.step is not None


@dataclass(frozen=True)
class Repository:
    """A git repository with code of the job.

    Attributes:
        folder: its top, or the folder of the code if it is in none.
        commit: None if there is none.
        note: what git could not tell, or why the diff is left out.
        changed: tracked files differ from the commit.
        diff: how they differ; in a submission only, an attempt has it as a file.
    """

    folder: str
    commit: str | None = None
    note: str = ""
    changed: bool = False
    diff: str = ""


@dataclass(frozen=True)
class CodeFile:
    """A file of the code or of `data`: a digest of its content, and when it was last changed.

    `changed_at` is in seconds since 1970. It is None for source code and `data`, which no run writes.
    """

    digest: str
    changed_at: float | None = None


@dataclass(frozen=True)
class CodeSource:
    """The repositories of the job's code, and its files by name.

    Both are empty if no process saw them, as for a rendered RayJob.
    """

    repositories: tuple[Repository, ...] = ()
    files: Mapping[str, CodeFile] = field(default_factory=dict)


@dataclass(frozen=True)
class CodeChange:
    """Files of the code that have changed since the newest attempt before that trained.

    Attributes:
        since: "step 160", from which this attempt resumes, or "attempt 1" for a script.
    """

    files: tuple[str, ...]
    since: str

    @property
    def text(self) -> str:
        """The change in one line, such as `task.py has changed since step 160`."""
        *others, last = self.files
        if len(others) >= _MOST_NAMES:
            others, last = others[:_MOST_NAMES], f"{len(self.files) - _MOST_NAMES} more"
        names = f"{', '.join(others)} and {last} have" if others else f"{last} has"
        return f"{names} changed since {self.since}"


@dataclass(frozen=True)
class Provenance:
    """The code, the packages and the machine with which an attempt was started.

    Attributes:
        source: the code. Of a submitted job, as it was at the submission.
        packages: those of the Python that claimed the attempt, as `name==version`.
        host: where that was; the event `group_started` has the hosts and GPUs of the ranks.
        code_change: None if the code is that of the attempt before, or unknown.
    """

    source: CodeSource
    packages: tuple[str, ...]
    python: str
    platform: str
    host: str
    cpus: int | None = None
    memory_bytes: int | None = None
    version: str = __version__
    code_change: CodeChange | None = None


@dataclass(frozen=True)
class CopiedCode:
    """The files of the code that were copied to the working folder of a run, each with its sha256."""

    versions: dict[str, str]


@dataclass(frozen=True)
class LeftFiles:
    """The files that a run has left in the user's own folder of code, by their names in it."""

    folder: str
    names: tuple[str, ...]
