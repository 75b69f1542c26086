"""The commit of a job's code and what differs from it, asked of git; and the digests of its files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from clustertrain.errors import ClusterError
from clustertrain.launchers.shell import CommandFailed, run
from clustertrain.run_files.records.provenance import CodeSource, Repository
from clustertrain.run_files.snapshot import UserCode, code_files

MOST_DIFF_BYTES = 1_000_000
_GIT_S = 20.0


def source_of(code: UserCode) -> CodeSource:
    """Return the state of the code of a job, with its files."""
    return replace(read_source(code.folders), files=code_files(code))


def read_source(folders: Sequence[str]) -> CodeSource:
    """Return the state of the repository of each folder of the code.

    A failure of git is a note in the state and never an error: the run does not need the state.
    """
    found = {each.folder: each for each in map(_repository, folders)}
    return CodeSource(tuple(found.values()))


def _repository(folder: str) -> Repository:
    try:
        top = _git(folder, "rev-parse", "--show-toplevel").strip()
        commit = _git(folder, "rev-parse", "HEAD").strip()
        diff = _git(folder, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color")
    except CommandFailed as error:  # no repository, or one without a commit
        printed = error.stderr.strip().splitlines() or [error.how]
        return Repository(folder, note=printed[-1])
    except ClusterError as error:
        return Repository(folder, note=str(error).splitlines()[0])
    size = len(diff.encode())
    note = "" if size <= MOST_DIFF_BYTES else f"the diff has {size:,} bytes and is left out"
    return Repository(top, commit, note, changed=bool(diff), diff="" if note else diff)


def _git(folder: str, *arguments: str) -> str:
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}  # not even the index is changed
    return run(["git", "-C", folder, *arguments], environ=environ, timeout_s=_GIT_S).stdout
