"""The moving lines at the bottom of a terminal: that of the user's code, below it clustertrain's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.progress import Progress
from rich.text import Text


class Region(Progress):
    """A Progress below the unfinished line of an output, which is cut at the edge of the terminal."""

    unfinished: Sequence[str] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        for line in self.unfinished:
            yield Text(line, no_wrap=True, overflow="ellipsis")
        yield self.make_tasks_table(self.tasks)
