"""What a supervisor shows of an attempt while it runs: its events, and what rank 0 prints."""

from __future__ import annotations

from clustertrain.observe.rank_output import RankOutput
from clustertrain.observe.screen import Screen
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.streams.history import AttemptFollower


class Display:
    """Shows one attempt on a screen.

    Args:
        command: the command that started the run, for messages.
    """

    def __init__(self, attempt: Attempt, screen: Screen, command: CommandLine) -> None:
        self._screen, self._command = screen, command
        self._follower = AttemptFollower(attempt.run.on_this_node.attempt(attempt.n))
        self._output = RankOutput(attempt)
        self._has_peers = self._has_printed = False
        self.is_training = False

    def update(self, *, is_last: bool = False) -> None:
        """Show what is new, or the rest, when no process of the run is left.

        The output comes first: it was written before the event of its end.
        """
        records = self._follower.new(of_all=is_last)
        sizes = [record["world_size"] for record in records if record["kind"] == "group_started"]
        self._has_peers |= any(size > 1 for size in sizes)
        self._output.follow(records)
        lines, unfinished = (self._output.rest(), []) if is_last else self._output.new()
        if self._has_peers and (lines or unfinished) and not self._has_printed:
            others = self._command.of("logs", "--rank", "1")
            self._screen.echo(f"rank 0 prints here; the output of rank 1, and so on: `{others}`")
            self._has_printed = True
        self._screen.output(lines, unfinished)
        self._screen.show(records)
        self.is_training |= bool(sizes)
