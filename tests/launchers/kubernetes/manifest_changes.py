"""Changes of manifests."""

import copy
from typing import Any

Manifest = dict[str, Any]

# By paths such as "spec/rayClusterSpec/workerGroupSpecs/0/replicas"; "+" at the end adds to a list.
# ABSENT takes a key out.
Change = dict[str, Any]
ABSENT = object()

CLUSTER = "spec/rayClusterSpec"
HEAD, WORKERS = f"{CLUSTER}/headGroupSpec", f"{CLUSTER}/workerGroupSpecs/0"
HEAD_POD, WORKER_POD = f"{HEAD}/template/spec", f"{WORKERS}/template/spec"
HEAD_BOX, WORKER_BOX = f"{HEAD_POD}/containers/0", f"{WORKER_POD}/containers/0"


def changed(manifest: Manifest, change: Change) -> Manifest:
    """A copy with the change made; mappings on the way are made where there are none."""
    made = copy.deepcopy(manifest)
    for path, value in change.items():
        *way, last = path.split("/")
        inner: Any = made
        for key in way:
            inner = inner[int(key)] if isinstance(inner, list) else inner.setdefault(key, {})
        if value is ABSENT:
            del inner[last]
        elif last == "+":
            inner.append(copy.deepcopy(value))
        else:
            inner[int(last) if isinstance(inner, list) else last] = copy.deepcopy(value)
    return made
