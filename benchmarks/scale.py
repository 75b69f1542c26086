"""How the control path of clustertrain grows with the number of ranks: counted, and simulated to 100,000.

    python benchmarks/scale.py [--ranks 64 256 1024] [--per-node 8] [--folder FOLDER] [--seed 1]

It runs the control path of one run for each number of ranks: the claims, the rendezvous, the
probe of the storage, heartbeats, requests, events, saves, a failure, a hang, a restart and `status`, by the
functions that real ranks call, as tasks in threads, without Ray and torch. Every operation on the storage, a
folder of this disk, is counted for each kind of actor. While other processes use the machine, it waits, and
counts again, at most twice: the times depend on them, and the numbers of operations do not. Then a start and
a restart of up to 100,000 ranks are simulated from these numbers, on storages with a queue. It prints tables
in Markdown.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import statistics
import tempfile
from pathlib import Path

from comparison.quiet import Quiet, foreign_load, machine
from scaling.control_path import ControlPath
from scaling.counting_store import Counts
from scaling.report import Report, rows_of, simulated_times
from scaling.simulation import Storage
from scaling.tables import tables


def counted(ranks: int, per_node: int, folder: Path | None = None) -> tuple[Counts, dict[str, float]]:
    """What each actor of a run with so many ranks did, and the seconds of each phase."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        counts = Counts()
        path = ControlPath(Path(own), ranks, per_node, counts)
        path.run_all()
        return counts, path.seconds


def measured(options: argparse.Namespace) -> Report:
    sizes = sorted(options.ranks)
    tried, load = Quiet(tries=3, waits=60, load_of=foreign_load).measure(
        lambda: {ranks: counted(ranks, options.per_node, options.folder) for ranks in sizes}
    )
    found = {ranks: counts for ranks, (counts, _) in tried.items()}
    rows, of_largest = rows_of(found), found[max(found)].seconds
    mean_s = statistics.mean(each for times in of_largest.values() for each in times)
    storages = {
        "this disk": Storage(mean_s, 16),
        "shared file system": Storage(0.001, 64),
        "object store": Storage(0.02, 100),
    }
    return Report(
        taken=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        command=f"python benchmarks/scale.py --ranks {' '.join(map(str, sizes))}"
        f" --per-node {options.per_node} --seed {options.seed}",
        seed=options.seed,
        machine=machine(),
        versions={"clustertrain": importlib.metadata.version("clustertrain")},
        foreign_load=load,
        rows=rows,
        seconds={str(ranks): seconds for ranks, (_, seconds) in tried.items()},
        medians_s={kind: statistics.median(times) for kind, times in sorted(of_largest.items())},
        storages=storages,
        times=simulated_times(rows, storages, options.seed),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--ranks", type=int, nargs=3, default=[64, 256, 1024])
    parser.add_argument("--per-node", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="the disk to use; default: that of temporary files")
    parser.add_argument("--seed", type=int, default=1)
    print(tables(measured(parser.parse_args())))


if __name__ == "__main__":
    main()
