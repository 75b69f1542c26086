"""Applies `kubernetes.patches` to the RayJob: a mapping as a strategic merge patch, a list as a JSON patch.

Kubernetes applies strategic merge patches only to its own kinds. Here the lists of a pod template have the
same keys as there, and worker groups are merged by groupName. A field that no RayJob has is refused by the
API server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clustertrain.errors import JobError
from clustertrain.launchers.kubernetes.render.fields import at
from clustertrain.units import shortened

_KEY = ("kubernetes", "patches")
_PATCHES = ".".join(_KEY)
# The lists whose items are merged, each with the field that names an item. Other lists are replaced.
_NAMED_BY = {
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
    "workerGroupSpecs": "groupName",
}
# What an item needs that is not in the list yet: without it, its name is probably misspelt.
_NEW_NEEDS = {"containers": "image", "initContainers": "image", "workerGroupSpecs": "template"}
# What clustertrain finds a run by, each with a remedy.
_KEPT = {
    "kind": "Remove it from the patch.",
    "metadata.name": "Set the job's key `name`.",
    "metadata.namespace": "Set the job's key `kubernetes.namespace`.",
}
_TOKEN = "automountServiceAccountToken"


def patched(rayjob: dict[str, Any], patches: dict[str, Any] | Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The RayJob with the patches of a job; both stay as they are.

    Raises:
        JobError: a patch does not fit the RayJob. The message has the patch and the path.
    """
    result = strategic_merge(rayjob, patches) if isinstance(patches, dict) else json_patch(rayjob, patches)
    for path, remedy in _KEPT.items():
        old, new = at(rayjob, *path.split(".")), at(result, *path.split("."))
        if new != old:
            raise _refused(_PATCHES, f"{path} becomes {_shown(new)}, and must stay {_shown(old)}", remedy)
    _check_tokens(result, _PATCHES)
    return dict(result)


def _check_tokens(value: Any, path: str) -> None:
    """No pod of a run has a token of the API server: one that says nothing would get it."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_tokens(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        if (_TOKEN in value or "containers" in value) and value.get(_TOKEN) is not False:
            text = f"{_TOKEN} is {_shown(value.get(_TOKEN))}, and must be false in every pod"
            raise _refused(path, text, "Remove it from the patch; in a new group write it.")
        for key, item in value.items():
            _check_tokens(item, f"{path}.{key}")


def json_patch(target: Any, operations: Sequence[dict[str, Any]]) -> Any:
    """RFC 6902: the operations in their order."""
    import jsonpatch  # only where a job has such patches
    import jsonpointer

    for index, operation in enumerate(operations):
        try:
            target = jsonpatch.apply_patch(target, [operation])
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
            # jsonpointer's message ends with the whole document.
            why = shortened(str(error).partition(" in {")[0].partition(" in [")[0].rstrip("."), most=200)
            raise _refused(
                f"{_PATCHES}[{index}]",
                f"{operation.get('op')} {operation.get('path')}: {why}",
                "A path names a field of the rendered RayJob, and `-` the end of a list.",
            ) from None
    return target


def strategic_merge(target: Any, patch: Any, path: str = _PATCHES) -> Any:
    """Merge mappings key by key; null removes a key. Items of a list with names are merged by name, and every
    other value replaces the old one. `$patch: delete` removes an item, `$patch: replace` replaces a list or
    mapping."""
    if not isinstance(patch, dict):
        return patch
    is_merged = isinstance(target, dict) and patch.get("$patch") != "replace"
    merged = dict(target) if is_merged else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif key in _NAMED_BY and isinstance(value, list):
            merged[key] = _merged_items(merged.get(key), value, f"{path}.{key}", key)
        elif (key, value) != ("$patch", "replace"):
            merged[key] = strategic_merge(merged.get(key), value, f"{path}.{key}")
    return merged


def _merged_items(old: Any, patches: list[Any], path: str, field: str) -> list[Any]:
    key = _NAMED_BY[field]
    needed = _NEW_NEEDS.get(field, key)
    kept = old if isinstance(old, list) and {"$patch": "replace"} not in patches else []
    merged = {str(at(item, key)): item for item in kept}
    for index, patch in enumerate(patches):
        name, is_deleted = str(at(patch, key)), at(patch, "$patch") == "delete"
        if patch == {"$patch": "replace"}:
            continue
        if name in merged and is_deleted:
            del merged[name]
        elif name in merged or (at(patch, needed) is not None and not is_deleted):
            merged[name] = strategic_merge(merged.get(name), patch, f"{path}[{index}]")
        else:
            raise _refused(
                f"{path}[{index}]",
                f"{field} has no {key} {_shown(name)} to change, and a new one needs {needed}",
                f"{field} has: {', '.join(merged) or 'none'}.",
            )
    return [*merged.values()]


def _refused(path: str, message: str, remedy: str) -> JobError:
    return JobError(f"{path}: {message}.\n{remedy}", at=_KEY)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return "a mapping" if isinstance(value, dict) else shortened(repr(value))
