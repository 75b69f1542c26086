"""`clustertrain explain` and `clustertrain stacks`."""

from __future__ import annotations

from collections.abc import Iterator

from clustertrain.observe.as_json import as_json as json_of
from clustertrain.observe.explain.evidence import Start
from clustertrain.observe.explain.explanation import claimed_attempt, explain
from clustertrain.observe.explain.stacks import stacks_now
from clustertrain.observe.terminal_text import plain
from clustertrain.run_files.folder.run_dir import RunDir


def explain_lines(run: RunDir, attempt: int | None, *, as_json: bool) -> Iterator[str]:
    """Yield the lines of `explain`, or its object."""
    found = explain(run, attempt)
    yield from [json_of(found)] if as_json else map(plain, found.lines())


def stacks_lines(run: RunDir) -> Iterator[str]:
    """Yield the lines of `stacks`."""
    start = Start.newest(claimed_attempt(run, None))
    for group in stacks_now(start):
        yield from map(plain, group.lines())
    if start.restart is not None and (request := start.restart.stacks_request.read()) is not None:
        yield f"all threads: {run.store.uri(start.restart.stacks_answers_key(request.id))}"
