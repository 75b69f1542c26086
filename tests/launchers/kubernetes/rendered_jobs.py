"""A job that runs in pods, as small as one can be, with sections changed or added; what is rendered of it."""

import pytest
import yaml

from clustertrain.job.file import load_job
from clustertrain.launchers.kubernetes.render.manifests import manifests
from clustertrain.launchers.kubernetes.render.pods import reader_pod


@pytest.fixture
def make_job(tmp_path):
    def make(**changes):
        (tmp_path / "m.py").write_text("x = 1\n")
        sections = {
            "name": "run-1",
            "task": "m:T",
            "train": {"epochs": 1, "batch_size": 4},
            "image": "localhost/clustertrain:dev",
            **changes,
        }
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(sections))
        return load_job(tmp_path / "job.yaml")

    return make


def of_kind(objects, kind):
    return [each for each in objects if each["kind"] == kind]


def spec_of(*job_and_options):
    """That of its RayJob."""
    return manifests(*job_and_options)[-1]["spec"]


def group_of(job):
    (group,) = spec_of(job)["rayClusterSpec"]["workerGroupSpecs"]
    return group


def pods(job):
    """Metadata and spec of every pod that the kit makes, by role."""
    spec = spec_of(job)
    cluster = spec["rayClusterSpec"]
    return {
        "head": cluster["headGroupSpec"]["template"],
        "worker": cluster["workerGroupSpecs"][0]["template"],
        "submitter": spec["submitterPodTemplate"],
        "reader": reader_pod(job, "run-1-read", 60),
    }


def containers(pod):
    return [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
