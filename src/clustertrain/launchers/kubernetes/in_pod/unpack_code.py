"""Unpacks the job's code where a pod may write, before its containers start."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from clustertrain.errors import ClusterTrainError
from clustertrain.run.snapshot import unpack


def main(archive: str, into: str) -> int:
    """Returns the exit code. What is there already, a pod whose sandbox was made anew has unpacked before."""
    shutil.rmtree(into, ignore_errors=True)
    try:
        unpack(Path(archive), Path(into))
    except ClusterTrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
