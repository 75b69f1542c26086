"""Unpacks the job's code into a writable folder, before the containers of a pod start."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from clustertrain.errors import ClusterTrainError
from clustertrain.staging.archive import extract


def main(archive: str, into: str) -> int:
    """Unpack `archive` into the folder `into`, and return the exit code.

    The old content of `into` is deleted: there is some if the kubelet created the pod's sandbox again.
    """
    shutil.rmtree(into, ignore_errors=True)
    try:
        extract(Path(archive), Path(into))
    except ClusterTrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
