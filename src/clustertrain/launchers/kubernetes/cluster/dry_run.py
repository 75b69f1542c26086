"""A dry run on the API server: it checks the objects of a run and stores none of them.

`kubectl apply` sends the objects of a file one after another. If the server refuses the third, two exist
already. So the same call runs first with --dry-run=server, which checks authorization, schema, admission and
quota for each object, with the schemas of the cluster's CRDs.
"""

from __future__ import annotations

from collections.abc import Sequence

from clustertrain.errors import ClusterError
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.render.manifests import Manifest, to_json
from clustertrain.launchers.shell import CommandFailed

_APPLY = ("apply", "--server-side", "--dry-run=server", "--filename=-")
_CREATE = ("create", "--dry-run=server", "--filename=-")
_TIMEOUT_S = 60.0
_NO_DRY_RUN = "does not support dry run"


def check_admission(objects: Sequence[Manifest], kubectl: Kubectl, *, replaced: bool = False) -> list[str]:
    """Have the API server check the objects before they are applied, and return notes on unchecked ones.

    Args:
        replaced: a RayJob of this name exists, and is deleted before the new one is applied. The new one is
            checked as a creation, since updates of a RayJob have other rules.

    Raises:
        Unanswered: as `Kubectl.__call__`.
        ClusterError: the server refuses an object; the message is the server's.
    """
    created = [_unnamed(each) for each in objects if replaced and each["kind"] == "RayJob"]
    applied = [each for each in objects if not (replaced and each["kind"] == "RayJob")]
    return [
        note
        for how, sent in ((_APPLY, applied), (_CREATE, created))
        if sent
        for note in _refused(how, sent, kubectl)
    ]


def _unnamed(manifest: Manifest) -> Manifest:
    """Return the object with `generateName`, since the server refuses to create one whose name exists."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "name"}
    return {**manifest, "metadata": {**metadata, "generateName": f"{manifest['metadata']['name']}-"}}


def _refused(how: Sequence[str], objects: Sequence[Manifest], kubectl: Kubectl) -> list[str]:
    """Return the server's messages on what it can check only when the object is applied."""
    try:
        kubectl(*how, input=to_json(objects), timeout_s=_TIMEOUT_S)
    except CommandFailed as error:
        said = [line for line in error.stderr.splitlines() if not line.startswith("Warning: ")]
        if all(_NO_DRY_RUN in line for line in said):
            return said
        text = "\n".join(said) or str(error)
        raise ClusterError(f"The API server refuses this, and nothing was applied:\n{text}") from None
    return []
