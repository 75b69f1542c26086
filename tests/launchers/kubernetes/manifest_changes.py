"""Changes of manifests, and rows of the table of wrong ones: see wrong_manifests.py."""

import copy
from dataclasses import dataclass
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
SUBMITTER_POD = "spec/submitterPodTemplate/spec"
SUBMITTER_BOX = f"{SUBMITTER_POD}/containers/0"


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


@dataclass(frozen=True)
class Wrong:
    """A right manifest and what is changed in it. `finds`: how many findings there are, all about it."""

    id: str
    by: str
    message: str
    change: Change
    manifest: Manifest
    finds: int = 1

    @property
    def made(self) -> Manifest:
        return changed(self.manifest, self.change)


def rows(
    by: str, manifest: Manifest, *given: tuple[str, str, Change] | tuple[str, str, Change, int]
) -> list[Wrong]:
    """Several that the same refuses."""
    return [Wrong(name, by, message, change, manifest, *finds) for name, message, change, *finds in given]


def variable(name: str, value: Any = "1") -> dict[str, Any]:
    """Of a container's environment."""
    return {"name": name, "value": value}
