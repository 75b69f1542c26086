"""The examples of the repository, for their tests: their modules, and the program that runs their jobs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from commands import Done, ran


@contextmanager
def modules_of(folder: Path, *names: str) -> Iterator[dict[str, ModuleType]]:
    """The modules of an example by name. Later tests import those of other examples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield {name: import_module(name) for name in names}
        for name in names:
            sys.modules.pop(name, None)


def clustertrain(*arguments: str, code: int = 0, **options: object) -> Done:
    """The end of `clustertrain ARGUMENTS` with this exit code."""
    return ran([sys.executable, "-m", "clustertrain.cli", *arguments], code=code, **options)


def set_options(sets: dict[str, object]) -> list[str]:
    """The options of these keys of the job file."""
    return [text for key, value in sets.items() for text in ("--set", f"{key}={value}")]
