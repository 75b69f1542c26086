"""The job file as one frozen model: the keys that every launcher understands, and the launchers' sections.

`clustertrain.job.file` reads and writes the file and formats the errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self, get_args, get_origin

from pydantic import model_validator

from clustertrain.job.common import CommonJob
from clustertrain.job.launcher_plugins import WithLaunchers, with_launcher_sections
from clustertrain.job.sections import Section


@with_launcher_sections
class Job(CommonJob, WithLaunchers):
    """One training job."""

    @model_validator(mode="after")
    def _consistent_sections(self) -> Self:
        self.check_sections()
        return self

    def check_sections(self) -> None:
        """Check the section of each launcher.

        Raises:
            Refused: one of them is inconsistent.
        """
        for section in self.launcher_sections.values():
            section.check(self.image)


def sections(
    model: type[Section] = Job, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], type[Section]]]:
    """Yield every section of the file with its path of keys, outermost first.

    `*` in a path is any name, as in data.*.
    """
    yield path, model
    for attribute, field in model.model_fields.items():
        key: tuple[str, ...] = (field.alias or attribute,)
        if get_origin(field.annotation) is dict:
            key = (*key, "*")
        for inner in _sections_of(field.annotation):
            yield from sections(inner, path + key)


def _sections_of(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections_of(inner)
