"""What a supervisor shows of an attempt while it runs: its events, and what rank 0 prints.

The output of a task is not shown: its loop has a line of progress.
"""

from __future__ import annotations

from collections.abc import Callable

from clustertrain.observe.event_lines import Record
from clustertrain.observe.rank_output import RankOutput
from clustertrain.observe.screen import Screen
from clustertrain.run.command_line import CommandLine
from clustertrain.run.folder import Attempt
from clustertrain.run.recorded_job import job_of
from clustertrain.run.streams.history import AttemptFollower


class Display:
    """Shows one attempt on a screen.

    Args:
        command: the command that started the run, for messages.
        also: called with the records that are shown.
    """

    def __init__(
        self,
        attempt: Attempt,
        screen: Screen,
        command: CommandLine,
        also: Callable[[list[Record]], None] = lambda records: None,
    ) -> None:
        self._screen, self._command, self._also = screen, command, also
        self._follower = AttemptFollower(attempt.run.on_this_node.attempt(attempt.n))
        job = job_of(attempt)
        is_shown = job is not None and job.entry_point != "task"
        self._output = RankOutput(attempt) if is_shown else None
        self.is_training = False

    def update(self, *, is_last: bool = False) -> None:
        """Show what is new, or the rest, when no process of the run is left. The output comes first: it was
        written before the event of its end."""
        records = self._follower.new(of_all=is_last)
        if self._output is not None:
            self._output.follow(records)
            lines, unfinished = (self._output.rest(), []) if is_last else self._output.new()
            self._screen.output(lines, unfinished)
        self._screen.show(records)
        self._also(records)
        sizes = [record["world_size"] for record in records if record["kind"] == "group_started"]
        if sizes and not self.is_training and self._output is not None and sizes[0] > 1:
            others = self._command.of("logs", "--rank", "1")
            self._screen.echo(f"rank 0 prints here; the output of rank 1, and so on: `{others}`")
        self.is_training |= bool(sizes)
