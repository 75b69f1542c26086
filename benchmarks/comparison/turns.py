"""What the programs share that measure sides by turns: options, turns, table and JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from comparison.results import Spread


def parser_of(text: str | None, *, rounds: int = 5) -> argparse.ArgumentParser:
    """With the options of all of these programs; `text` is the docstring of the program."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", type=Path, help="write the seconds of each side")
    return parser


def by_turns(
    sides: Iterable[str], rounds: int, measure: Callable[[int, str], float]
) -> dict[str, list[float]]:
    """The seconds of each side, after one turn of each that does not count: it reads what is then in memory.
    `measure` is called with the number of the round and the side."""
    found: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side in list(found)[:: 1 if number % 2 else -1]:
            seconds = measure(number, side)
            print(f"round {number}  {side:26} {seconds:8.3f} s", file=sys.stderr, flush=True)
            if number:
                found[side].append(seconds)
    return found


def show(title: str, found: Mapping[str, Sequence[float]], ours: str) -> None:
    """Print median, min and max of each side's seconds, and the ratio of our time to each peer's time."""
    print(f"{title:28}{'median':>11}{'min':>11}{'max':>11}{'ours / this':>12}")
    our_median = Spread.of(found[ours]).median
    for side, seconds in found.items():
        spread = Spread.of(seconds)
        numbers = "".join(f"{s:>9.3f} s" for s in (spread.median, spread.low, spread.high))
        share = f"{our_median / spread.median:>12.2f}" if side != ours else ""
        print(f"{side:28}{numbers}{share}")


def write(path: Path | None, found: Mapping[str, Sequence[float]]) -> None:
    """Write the seconds of each side, where `--json` names a file."""
    if path is not None:
        path.write_text(json.dumps(found))
