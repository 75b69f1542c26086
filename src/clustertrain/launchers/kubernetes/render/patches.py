"""Applies `kubernetes.patches` to the RayJob: a mapping as a strategic merge patch, a list as a JSON patch.

Kubernetes applies strategic merge patches only to its own kinds. Here the lists of a pod template have the
same keys as there, and worker groups are merged by groupName.
"""

from __future__ import annotations

import json
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
_DIRECTIVE = "$patch"
# What clustertrain finds a run by, each with a remedy.
_KEPT = {
    "kind": "Remove it from the patch.",
    "metadata.name": "Set the job's key `name`.",
    "metadata.namespace": "Set the job's key `kubernetes.namespace`.",
}
_TOKEN = "automountServiceAccountToken"
MOST_BYTES, DEEPEST_LEVEL = 1 << 20, 100  # the API server takes 1.5 MiB


def patched(rayjob: dict[str, Any], patches: dict[str, Any] | Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The RayJob with the patches of a job; both stay as they are.

    Raises:
        JobError: a patch does not fit the RayJob. The message has the patch and the path.
    """
    result = strategic_merge(rayjob, patches) if isinstance(patches, dict) else json_patch(rayjob, patches)
    if not isinstance(result, dict):
        raise JobError(
            f"{_PATCHES}: they replace the whole RayJob by {shortened(str(result))}.\n"
            "A path begins with /spec or /metadata.",
            at=_KEY,
        )
    for path, remedy in _KEPT.items():
        old, new = at(rayjob, *path.split(".")), at(result, *path.split("."))
        if new != old:
            raise _refused(_PATCHES, f"{path} becomes {_shown(new)}, and must stay {_shown(old)}", remedy)
    _check_size(result, _PATCHES)
    _check_tokens(result, _PATCHES)
    return result


def _check_size(result: Any, where: str) -> None:
    if (size := len(json.dumps(result))) > MOST_BYTES or _depth(result) > DEEPEST_LEVEL:
        text = f"the RayJob has {size} bytes then, nested {_depth(result)} levels deep"
        rule = (
            f"At most {MOST_BYTES} bytes and {DEEPEST_LEVEL} levels are accepted: put large data elsewhere."
        )
        raise _refused(where, text, rule)


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


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


# --------------------------------------------------------------------------------------------- JSON patch


def json_patch(target: Any, operations: Sequence[dict[str, Any]]) -> Any:
    """RFC 6902: the operations in their order."""
    import jsonpatch  # only where a job has such patches
    import jsonpointer

    for index, operation in enumerate(operations):
        try:
            target = jsonpatch.apply_patch(target, [operation])
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
            raise JobError(
                f"{_PATCHES}[{index}]: {operation['op']} {operation['path']}: {_reason(error)}.\n"
                "A path names a field of the rendered RayJob, and `-` the end of a list.",
                at=_KEY,
            ) from None
        _check_size(target, f"{_PATCHES}[{index}]")  # each copy may double it
    return target


def _reason(error: Exception) -> str:
    """The message without the document, which jsonpointer prints as a whole."""
    return shortened(str(error).partition(" in {")[0].partition(" in [")[0].rstrip("."), most=200)


# --------------------------------------------------------------------------------- strategic merge patch


def strategic_merge(target: Any, patch: Any, path: str = _PATCHES) -> Any:
    """Merge mappings key by key; null removes a key. Items of a list with names are merged by name, and every
    other value replaces the old one. `$patch: delete` removes an item, `$patch: replace` replaces a list or
    mapping."""
    if not isinstance(patch, dict):
        return patch
    _check_directive(patch, path, "replace")
    replaced = patch.get(_DIRECTIVE) == "replace"
    merged = dict(target) if isinstance(target, dict) and not replaced else {}
    for key, value in patch.items():
        where = f"{path}.{key}"
        if key == _DIRECTIVE:
            continue
        if value is None:
            merged.pop(key, None)
        elif isinstance(merged.get(key), list) and not isinstance(value, list):
            raise _refused(where, f"is {_shown(value)}, and the RayJob has a list there", "Write a list.")
        elif key in _NAMED_BY and isinstance(value, list):
            old = merged.get(key)
            merged[key] = _merged_items(old if isinstance(old, list) else [], value, where, key)
        else:
            merged[key] = strategic_merge(merged.get(key), value, where)
    return merged


def _merged_items(old: list[Any], patches: list[Any], path: str, field: str) -> list[Any]:
    name_key = _NAMED_BY[field]
    if any(each == {_DIRECTIVE: "replace"} for each in patches):
        old, patches = [], [each for each in patches if each != {_DIRECTIVE: "replace"}]
    merged = list(old)
    for index, patch in enumerate(patches):
        where = f"{path}[{index}]"
        if not isinstance(patch, dict) or patch.get(name_key) is None:
            raise _refused(where, f"has no {name_key}", f"Items of {field} are merged by {name_key}: add it.")
        _check_directive(patch, where, "replace", "delete")
        names = [each.get(name_key) if isinstance(each, dict) else None for each in merged]
        position = names.index(patch[name_key]) if patch[name_key] in names else None
        if patch.get(_DIRECTIVE) == "delete":
            if position is None:
                raise _unknown(where, field, patch[name_key], names, "remove")
            del merged[position]
        elif position is not None:
            merged[position] = strategic_merge(merged[position], patch, where)
        elif (needed := _NEW_NEEDS.get(field)) is None or needed in patch:
            merged.append(strategic_merge({}, patch, where))
        else:
            raise _unknown(where, field, patch[name_key], names, f"change, and a new one needs {needed}")
    return merged


def _check_directive(patch: dict[str, Any], path: str, *known: str) -> None:
    for key in patch:
        if key.startswith("$") and key != _DIRECTIVE:
            raise _refused(f"{path}.{key}", "is an unknown directive", f"Only {_DIRECTIVE} is supported.")
    directive = patch.get(_DIRECTIVE)
    if directive is not None and directive not in known:
        text = f"is {_shown(directive)}, and must be {' or '.join(known)} there"
        raise _refused(f"{path}.{_DIRECTIVE}", text, "Write one of them, or leave it out.")


def _unknown(path: str, field: str, name: Any, names: list[Any], what: str) -> JobError:
    known = ", ".join(str(each) for each in names) or "none"
    return _refused(path, f"{field} has no {_shown(name)} to {what}", f"{field} has: {known}.")


def _refused(path: str, message: str, remedy: str) -> JobError:
    return JobError(f"{path}: {message}.\n{remedy}", at=_KEY)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return "a mapping" if isinstance(value, dict) else shortened(repr(value))
