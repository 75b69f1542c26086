"""Patches of the RayJob: a JSON patch; what does not fit is named."""

import pytest

from clustertrain.errors import JobError
from clustertrain.launchers.kubernetes.render.patches import patched
from launchers.kubernetes.sample_manifests import rayjob

RAYJOB = rayjob()
TTL = "/spec/ttlSecondsAfterFinished"
GROUP = "/spec/rayClusterSpec/workerGroupSpecs/0"


@pytest.mark.parametrize(
    ("patch", "place", "rule"),
    [
        ([{"op": "set", "path": "/a"}], "kubernetes.patches[0]: set /a", "Unknown operation 'set'"),
        ([{"op": "remove", "path": "a/b"}], "patches[0]: remove a/b", "must start with /"),
        (
            [{"op": "remove", "path": TTL}, {"op": "add", "path": f"{GROUP}/nope/x", "value": 1}],
            f"kubernetes.patches[1]: add {GROUP}/nope/x",
            "member 'nope' not found",
        ),
    ],
)
def test_a_patch_that_does_not_fit_is_named_with_its_path(patch, place, rule):
    with pytest.raises(JobError) as caught:
        patched(RAYJOB, patch)
    text = str(caught.value)
    assert place in text and rule in text, text
    assert 2 <= len(text.splitlines()) <= 3 and max(map(len, text.splitlines())) < 400
    assert caught.value.at == ("kubernetes", "patches")


NEW_GROUP = {"groupName": "b", "template": {"spec": {"containers": [{"name": "b", "image": "b"}]}}}
TOKEN = f"{GROUP}/template/spec/automountServiceAccountToken"


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        ({"op": "replace", "path": TOKEN, "value": True}, "automountServiceAccountToken is True"),
        ({"op": "remove", "path": TOKEN}, "automountServiceAccountToken is None, and must be false"),
        (
            {"op": "add", "path": "/spec/rayClusterSpec/workerGroupSpecs/-", "value": NEW_GROUP},
            "automountServiceAccountToken is None",
        ),
        (
            {"op": "add", "path": "/spec/submitterPodTemplate", "value": NEW_GROUP["template"]},
            "automountServiceAccountToken is None",
        ),
    ],
)
def test_no_pod_gets_a_token_of_the_api_server(operation, text):
    with pytest.raises(JobError) as caught:
        patched(RAYJOB, [operation])
    assert text in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2
