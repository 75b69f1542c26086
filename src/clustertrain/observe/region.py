"""The moving lines at the bottom of a terminal: those of the user's code, and below them the kit's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.progress import Progress
from rich.text import Text

_MOST_LINES = 8


class Region(Progress):
    """A Progress below the unfinished lines of an output. Lines are cut at the edge of the terminal."""

    unfinished: Sequence[str] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        for line in self.unfinished[-_MOST_LINES:]:
            yield Text(line, no_wrap=True, overflow="ellipsis")
        yield self.make_tasks_table(self.tasks)
