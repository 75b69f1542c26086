"""Start, speed, memory and recovery of clustertrain against other ways to start the same training.

    python benchmarks/bench.py [--quick] [--rounds 5] [--only start memory] [--folder FOLDER] [--json FILE]
    python benchmarks/bench.py --page docs/performance.md [--json FILE]

The first command measures, writes every value to the JSON file and prints the tables. The second one writes
the page of the documentation and its picture from that file. With `--only` the file keeps its other values.
All programs train the same (peers/lenet.py).

In each round every program is started once, one after the other. Before and after each measurement one
second is spent to see how much processor time other processes use. If it is more than 0.2 processors before,
the bench waits, at most a minute; if it is more afterwards, the measurement is made again, at most twice, and
the quietest one counts. Values that were never quiet are marked. Memory is measured in runs of its own,
because reading it costs processor time.

`--quick` makes one round of 3 minutes on two idle cores: all programs start, and of the rest it measures only
what the goals need.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from comparison import trainings
from comparison.page import page, tables
from comparison.picture import picture
from comparison.plan import FULL, QUICK, SECTIONS, Measurement, Numbers, plan
from comparison.processes import Failed
from comparison.quiet import Quiet, machine
from comparison.results import Report, Value

VERSIONS = ("clustertrain", "torch", "ray", "accelerate", "lightning", "awscli")


def measured(report: Report, each: Measurement, folder: Path, quiet: Quiet) -> Report:
    """The report with what this measurement finds, or with the reason why it finds nothing."""

    def attempt() -> Numbers:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            return each.measure(Path(own))

    try:
        if each.missing:
            raise Failed(each.missing)
        found, load = quiet.measure(attempt)
    except Failed as reason:
        for figure, program in each.rows:
            report = report.with_values(figure, program, (), str(reason))
        print(f"{each.rows[0][1]}: {reason}", file=sys.stderr)
        return report
    for (figure, program), numbers in zip(each.rows, found, strict=True):
        report = report.with_values(figure, program, [Value(number, load) for number in numbers])
        texts = ", ".join(f"{number:.4g}" for number in numbers)
        print(f"{figure:16} {program:34} {texts:>14}   load {load:.2f}", file=sys.stderr, flush=True)
    return report


def versions() -> dict[str, str]:
    found = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    return {name: found.get(name, "not installed") for name in VERSIONS}


def measure_all(options: argparse.Namespace) -> Report:
    amounts = QUICK if options.quick else FULL
    rounds = options.rounds or amounts.rounds
    amounts = replace(amounts, rounds=rounds)  # those of a cluster as well
    disk = options.folder.resolve()
    disk.mkdir(parents=True, exist_ok=True)
    wanted = [each for each in plan(amounts, disk) if not options.only or each.section in options.only]
    taken = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    command = f"python benchmarks/bench.py{' --quick' if options.quick else ''} --rounds {rounds}"
    report = Report(taken, command, machine(), versions())
    if options.only and options.json.exists():
        before, again = Report.read(options.json), {row for each in wanted for row in each.rows}
        rows = tuple(row for row in before.rows if (row.figure, row.program) not in again)
        commands = f"{before.command}; {command} --only {' '.join(options.only)}"
        report = replace(report, command=commands, rows=rows)
    with tempfile.TemporaryDirectory(prefix="b-") as folder:
        if amounts.everything and any(each.section != "command" for each in wanted):
            (Path(folder) / "warm").mkdir()
            trainings.warm_up(Path(folder) / "warm")
        quiet = Quiet(amounts.tries, amounts.waits_s)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for each in wanted:
                if each.once and number:
                    continue
                report = measured(report, each, Path(folder), quiet)
                report.write(options.json)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round with fewer steps, in 3 minutes")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="measure only these")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="the disk for saves and copies")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--page", type=Path, help="write this page from the JSON file; measure nothing")
    options = parser.parse_args()
    if options.page:
        report = Report.read(options.json)
        options.page.write_text(page(report))
        (options.page.parent / "pictures" / "performance.svg").write_text(picture(report))
        return
    print(tables(measure_all(options)))


if __name__ == "__main__":
    main()
