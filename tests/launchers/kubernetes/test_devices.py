"""Devices that a cluster names: their names, and slices of GPUs that several ranks cannot share."""

import pytest
from pydantic import ValidationError

from clustertrain.errors import JobError
from clustertrain.job.file import dump_job, parse_job
from clustertrain.launchers.gpu_slices import check_slices, is_slice_of_gpu
from clustertrain.launchers.kubernetes.section import Kubernetes

KEY = ("kubernetes", "gpu_resource")


def test_amounts_are_what_kubernetes_reads():
    given = {"rdma/hca_shared_devices_a": 1, "vpc.amazonaws.com/efa": "4", "hugepages-2Mi": "5120Mi"}
    section = Kubernetes.model_validate({"worker_resources": given})
    assert section.worker_resources == {**given, "rdma/hca_shared_devices_a": "1"}


def test_a_written_job_file_has_the_same_amounts():
    text = "name: a\nfunction: m:f\nkubernetes: {worker_resources: {hugepages-1Gi: 2Gi, rdma/ib: 8}}\n"
    job = parse_job(text, "job.yaml")
    written = dump_job(job)
    assert "hugepages-1Gi: 2Gi" in written
    assert parse_job(written, "job.yaml").kubernetes == job.kubernetes


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("cpu", "must be a resource without a key of its own\nset resources.cpus_per_worker"),
        ("ephemeral-storage", "set kubernetes.ephemeral_storage"),
        ("nvidia.com/gpu", "set resources.gpus_per_worker, and kubernetes.gpu_resource: nvidia.com/gpu"),
        ("nvidia.com/mig-1g.10gb", "kubernetes.gpu_resource: nvidia.com/mig-1g.10gb"),
        ("efa", "must be DOMAIN/NAME"),
    ],
)
def test_resources_that_are_no_devices(name, rule):
    with pytest.raises(ValidationError) as caught:
        Kubernetes.model_validate({"worker_resources": {name: 4}})
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    "name", ["nvidia.com/mig-1g.10gb", "1g.10gb", "a100_3g.20gb", "nvidia.com/mig-1g.10gb.me"]
)
def test_slices_are_recognized(name):
    assert is_slice_of_gpu(name)
    check_slices(KEY, name, workers=1, gpus_per_worker=1, together="pod")
    for workers, gpus in ((2, 1), (1, 2)):
        with pytest.raises(JobError, match="2 slices in one pod") as caught:
            check_slices(KEY, name, workers, gpus, "pod")
        assert caught.value.at == KEY


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "a100", "h100_80gb", "amd.com/gpu", ""])
def test_whole_gpus_are_no_slices(name):
    assert not is_slice_of_gpu(name)
    check_slices(KEY, name, workers=8, gpus_per_worker=2, together="pod")
