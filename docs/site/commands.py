"""Write docs/reference/commands.md from the commands and their options.

python docs/site/commands.py docs/reference/commands.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from clustertrain.cli.main import GROUPS, main

INTRODUCTION = """\
<!-- Written by: python docs/site/commands.py docs/reference/commands.md -->

# Commands

`clustertrain COMMAND --help` prints the same in a terminal. The [exit codes](states.md) are the same for all.
"""


def commands_markdown() -> str:
    """The text of the page: a heading for each command, and a list of its options."""
    lines, context = [INTRODUCTION], click.Context(main)
    for title, names in GROUPS.items():
        lines.append(f"## {title}\n")
        for name in names:
            lines += _command(main.get_command(context, name), f"clustertrain {name}", 3)
    return "\n".join(lines)


def _command(command: click.Command, path: str, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield f"{'#' * level} {path.removeprefix('clustertrain ')}\n"
    if isinstance(command, click.Group):
        yield f"{_text(command.help)}\n"
        for name in command.list_commands(context):
            yield from _command(command.commands[name], f"{path} {name}", level + 1)
        return
    yield f"`{path} {' '.join(command.collect_usage_pieces(context))}`\n"
    yield f"{_text(command.help)}\n"
    records = [each.get_help_record(context) for each in command.params if isinstance(each, click.Option)]
    if options := [f"- `{record[0]}`: {record[1]}" for record in records if record]:
        yield "\n".join(options) + "\n"


def _text(text: str | None) -> str:
    paragraphs = (text or "").replace("\b", "").strip().split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(commands_markdown(), "utf-8")
