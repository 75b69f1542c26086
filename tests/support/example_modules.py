"""The examples of the repository, for their tests: their modules, and the program that runs their jobs."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from support.commands import Done, ran


def example_of(folder: Path, *names: str) -> Callable[..., dict[str, ModuleType]]:
    """A fixture: the modules of an example by name. Later tests import those of other examples."""

    @pytest.fixture(scope="module")
    def example() -> Iterator[dict[str, ModuleType]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)
            yield {name: import_module(name) for name in names}
            for name in names:
                sys.modules.pop(name, None)

    return example


def clustertrain(*arguments: str, code: int = 0, **options: object) -> Done:
    """The end of `clustertrain ARGUMENTS` with this exit code."""
    return ran([sys.executable, "-m", "clustertrain.cli", *arguments], code=code, **options)


def set_options(sets: dict[str, object]) -> list[str]:
    """The options of these keys of the job file."""
    return [text for key, value in sets.items() for text in ("--set", f"{key}={value}")]
