"""`python -m clustertrain.worker.data.shard_index SHARD…` prints an index of WebDataset shards as JSON.

Each SHARD is a folder, or a path or URL with braces ("s3://bucket/train-{0000..0127}.tar"). Local shards are
read by their headers only, shards on S3 and the web as a whole. S3 servers other than Amazon's are named by
AWS_ENDPOINT_URL. A torn shard is an error.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

from clustertrain.errors import ClusterTrainError
from clustertrain.storage.location import Location
from clustertrain.training.data.tar_shard import count_samples, expanded
from clustertrain.worker.data.shard_source import ShardOpener

_AT_A_TIME = 8


def index_of(shards: list[str]) -> dict[str, list[dict[str, str | int]]]:
    """The index of the shards, with their names as they are given."""
    names = [name for each in shards for name in expanded(each)]
    opener = ShardOpener(Location("."))
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        counts = threads.map(lambda name: count_samples(name, opener), names)
        return {"shardlist": [{"url": name, "nsamples": n} for name, n in zip(names, counts, strict=True)]}


def main(arguments: list[str]) -> int:
    """The exit code."""
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        index = index_of(arguments)
    except ClusterTrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(index, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
