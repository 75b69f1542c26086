"""Mistakes of patches that nobody reports later: what is refused, what is advised on, in which words."""

import copy
import random
from typing import Any

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.errors import EXIT_FAILED, JobError
from clustertrain.launchers.kubernetes.render.rayjob_rules import check_rayjob
from clustertrain.launchers.kubernetes.submit import SCHEDULER
from clustertrain.run.admission import Options
from launchers.kubernetes.manifest_changes import (
    ABSENT,
    CLUSTER,
    HEAD_BOX,
    HEAD_POD,
    WORKER_BOX,
    WORKER_POD,
    WORKERS,
    Change,
    changed,
)
from launchers.kubernetes.pod_job import make_job
from launchers.kubernetes.right_manifests import RAYJOBS, rayjob

__all__ = ["make_job"]
OPEN: Change = {"spec/shutdownAfterJobFinishes": ABSENT, "spec/ttlSecondsAfterFinished": ABSENT}
PROBE = {"httpGet": {"port": 8000}}

REFUSED: dict[str, tuple[str, Change]] = {
    "no-spec": ("headGroupSpec.template.spec.containers has no container", {"spec": ABSENT}),
    "no-cluster": ("headGroupSpec.template.spec.containers has no container", {CLUSTER: ABSENT}),
    "no-container": ("has no container", {f"{HEAD_POD}/containers": []}),
    "worker-no-container": ("has no container", {f"{WORKER_POD}/containers": []}),
    "no-group": ("workerGroupSpecs has no group", {f"{CLUSTER}/workerGroupSpecs": []}),
    "int32": ("the operator cannot read it", {"spec/backoffLimit": 2**31}),
    "int32-replicas": ("the operator cannot read it", {f"{WORKERS}/maxReplicas": 2**31}),
    "int32-probe": (
        "the operator cannot read it",
        {f"{HEAD_BOX}/startupProbe": {**PROBE, "periodSeconds": 2**31}},
    ),
}
ADVISED: dict[str, tuple[str, Change]] = {
    "no-shutdown": ("the cluster stays, with its GPUs", OPEN),
    "no-token": ("can run code there", {f"{CLUSTER}/authOptions": ABSENT}),
    "image-without-tag": ("without a tag", {f"{WORKER_BOX}/image": "registry.example.com:5000/train"}),
}


@pytest.mark.parametrize("manifest", RAYJOBS.values(), ids=RAYJOBS)
def test_nothing_is_found_in_a_right_rayjob(manifest):
    assert check_rayjob(manifest) == []


@pytest.mark.parametrize(("message", "change"), REFUSED.values(), ids=REFUSED)
def test_what_stops_the_kit_or_the_operator_is_an_error_with_its_path(message, change):
    with pytest.raises(JobError) as caught:
        check_rayjob(changed(rayjob(), change))
    assert message in str(caught.value)
    assert str(caught.value).startswith("RayJob right: spec.")
    assert caught.value.at == ("kubernetes", "patches") and str(caught.value).count("\n") == 1


@pytest.mark.parametrize(("message", "change"), ADVISED.values(), ids=ADVISED)
def test_what_nobody_refuses_is_advice(message, change):
    (line,) = check_rayjob(changed(rayjob(), change))
    assert line.startswith("advice: RayJob right: ") and message in line


ODD = [None, 7, "text", [], {}, True, [None], {"a": None}, -(2**70), 1e400, float("nan"), "\x00", "é" * 300]


@pytest.mark.parametrize("seed", range(30))
def test_no_patch_makes_it_fail(seed):
    """Values of other types, anywhere; what it says can be printed."""
    dice = random.Random(seed)
    for name, manifest in RAYJOBS.items():
        made = copy.deepcopy(manifest)
        for _ in range(dice.randint(1, 4)):
            holder, key = dice.choice([*_places(made["spec"])])
            holder[key] = copy.deepcopy(dice.choice(ODD))
        try:
            lines = check_rayjob(made)
        except JobError as error:
            lines = str(error).splitlines()
        assert all(line.isprintable() for line in lines), (name, lines)


def _places(value: Any):
    """Everything in it, as the holder and the key."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in [*entries]:
        yield value, key
        yield from _places(inner)


@pytest.mark.parametrize("patches", [{"spec": None}, {"spec": 3}, {"spec": {"rayClusterSpec": []}}])
def test_a_patch_that_leaves_no_cluster_is_refused_by_render(make_job, patches):
    with pytest.raises(JobError, match="has no container"):
        SCHEDULER.plan(make_job(kubernetes={"patches": patches}), Options())


def test_advice_is_an_error_only_with_strict(make_job, tmp_path, monkeypatch):
    make_job(task="elsewhere:T")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))

    def validate(*options: str):
        return CliRunner().invoke(main, ["check", "--no-code", "--to", "kubernetes", "job.yaml", *options])

    untagged = ("--set", "image=registry.example.com/train")
    assert validate("--strict").exit_code == validate(*untagged).exit_code == 0
    done = validate("--strict", *untagged)
    assert done.exit_code == EXIT_FAILED and "advice: RayJob run-1: " in done.output
    assert "note: not checked with a cluster (fields and types, " in done.output
