"""The folder k8s/: manifests are what their job file renders, and a component does what a key of a job file
does.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from clusters.kube_client import path as programs
from clustertrain.job.file import load_job, parse_job
from clustertrain.launchers.kubernetes.render.manifests import manifests, to_yaml
from launchers.kubernetes.rendered_jobs import of_kind
from support.commands import ran

K8S = Path(__file__).parents[3] / "k8s"
RENDERED = {"base/rayjob-digits.yaml": "digits.yaml"}
GPU_JOB = "digits-gpu.yaml"
# The key of a job file that does the same as a component. Monitoring is of a cluster, not of a job.
COMPONENTS = {
    "kueue": "kubernetes.queue={name: training}",
    "pvc": "kubernetes.volumes=[{mount: /mnt/clustertrain, claim: clustertrain, size: 100Gi}]",
    "s3-secret": "kubernetes.secrets=[s3]",
    "volcano": "kubernetes.queue={kind: volcano, name: training}",
}


def read(name):
    return list(yaml.safe_load_all((K8S / name).read_text()))


@pytest.mark.parametrize("name", RENDERED)
def test_manifests_are_what_their_job_file_renders(name):
    rendered = to_yaml(manifests(load_job(K8S / RENDERED[name])))
    assert (K8S / name).read_text() == rendered, (
        f"clustertrain render --to kubernetes k8s/{RENDERED[name]} > k8s/{name}"
    )


def test_every_job_file_and_every_rayjob_is_among_them():
    files = {file.relative_to(K8S).as_posix() for file in K8S.rglob("*.yaml") if not file.is_symlink()}
    kinds = {name: {each.get("kind") for each in read(name)} for name in files}
    assert {name for name in files if "RayJob" in kinds[name]} == set(RENDERED)
    jobs = {name for name in files if "/" not in name and kinds[name] == {None}}
    assert jobs == {*RENDERED.values(), GPU_JOB}
    assert {path.name for path in (K8S / "components").iterdir()} == {*COMPONENTS, "monitoring"}


# ---------------------------------------------------------------------------------------------- kustomize


def kustomized(folder):
    if (kubectl := shutil.which("kubectl", path=programs())) is None:
        pytest.skip("no kubectl: make kube-tools builds one")
    done = ran([kubectl, "kustomize", str(folder)], code=0)
    return list(yaml.safe_load_all(done.stdout))


def with_components(folder, *components):
    shutil.copytree(K8S, folder / "k8s", symlinks=True)
    own = folder / "k8s" / "own"
    own.mkdir()
    kustomization = {"resources": ["../base"], "components": [f"../components/{c}" for c in components]}
    (own / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return kustomized(own)


def beside_the_job(objects):
    """The objects without the job file, whose text has the key, and without the hash of that text."""
    left = [each for each in objects if each["kind"] != "ConfigMap"]
    text = json.dumps(sorted(left, key=lambda each: (each["kind"], each["metadata"]["name"])), sort_keys=True)
    return json.loads(re.sub(r"digits-[0-9a-f]{10}", "CONFIG-MAP", text))


@pytest.mark.kubernetes
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_does_what_its_key_does(component, tmp_path):
    with_key = manifests(load_job(K8S / "digits.yaml", [COMPONENTS[component]]))
    assert beside_the_job(with_components(tmp_path, component)) == beside_the_job(with_key)


@pytest.mark.kubernetes
def test_all_components_together(tmp_path):
    objects = with_components(tmp_path, *COMPONENTS, "monitoring")
    labels = of_kind(objects, "RayJob")[0]["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == labels["volcano.sh/queue-name"] == "training"
    assert of_kind(objects, "PodMonitor")


@pytest.mark.kubernetes
def test_the_overlay_changes_namespace_and_image_of_what_is_rendered():
    text = (K8S / "overlays" / "kind" / "kustomization.yaml").read_text()
    assert text.count("\nnamespace:") == text.count("newName:") == 1
    objects = kustomized(K8S / "overlays" / "kind")
    rendered = manifests(
        load_job(K8S / "digits.yaml", ["image=clustertrain:dev", "kubernetes.namespace=training"])
    )
    left = [each for each in objects if each["kind"] != "PersistentVolumeClaim"]
    assert beside_the_job(left) == beside_the_job(rendered)
    job = parse_job(of_kind(objects, "ConfigMap")[0]["data"]["job.yaml"], "job.yaml")
    assert job.resources.workers == 2
