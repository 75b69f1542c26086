"""Applies `kubernetes.patches` to the RayJob: a JSON patch (RFC 6902).

What it makes of the RayJob is the job's own: the API server and the operator check it. Only a token of the
API server is refused here, because no pod of a run needs one and nobody else would refuse it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clustertrain.errors import JobError

_KEY = ("kubernetes", "patches")
_TOKEN = "automountServiceAccountToken"


def patched(rayjob: dict[str, Any], operations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the RayJob with the operations of a job applied in their order.

    Raises:
        JobError: a path does not fit the RayJob, or a pod would get a token of the API server.
    """
    import jsonpatch  # only where a job has such patches
    import jsonpointer

    result = rayjob
    for index, operation in enumerate(operations):
        try:
            result = jsonpatch.apply_patch(result, [operation])
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
            why = str(error).partition(" in {")[0].partition(" in [")[0]  # the rest is the whole document
            path = f"{operation.get('op')} {operation.get('path')}"
            raise JobError(
                f"kubernetes.patches[{index}]: {path}: {why}.\n"
                "A path names a field of the rendered RayJob, and `-` the end of a list.",
                at=_KEY,
            ) from None
    _check_tokens(result)
    return result


def _check_tokens(value: Any) -> None:
    """Check that no pod of a run has a token of the API server: a pod without the field would get one."""
    if isinstance(value, dict):
        if (_TOKEN in value or "containers" in value) and value.get(_TOKEN) is not False:
            raise JobError(
                f"kubernetes.patches: {_TOKEN} is {value.get(_TOKEN)}, and must be false in every pod.\n"
                "Remove it from the patch; in a new group write it.",
                at=_KEY,
            )
        value = [*value.values()]
    if isinstance(value, list):
        for item in value:
            _check_tokens(item)
