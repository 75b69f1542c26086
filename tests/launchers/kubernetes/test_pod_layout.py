"""On how many nodes workers with GPUs run where the job does not say: by `kubernetes.gpus_per_node`."""

import pytest

from clustertrain.errors import JobError
from clustertrain.launchers.kubernetes.render.manifests import manifests
from launchers.kubernetes.pod_job import group_of


@pytest.mark.parametrize(
    ("resources", "per_node", "replicas", "gpus"),
    [
        ({"workers": 8, "gpus_per_worker": 1}, 8, (1, 1), "8"),
        ({"workers": 8, "gpus_per_worker": 1}, 4, (2, 2), "4"),
        ({"workers": 12, "gpus_per_worker": 1}, 8, (2, 2), "6"),
        ({"workers": 4, "gpus_per_worker": 2}, 4, (2, 2), "4"),
        ({"workers": [2, 8], "gpus_per_worker": 1}, 8, (1, 4), "2"),
        ({"workers": 8, "nodes": 4, "gpus_per_worker": 1}, 8, (4, 4), "2"),
    ],
)
def test_as_few_pods_as_the_nodes_allow(make_job, resources, per_node, replicas, gpus):
    group = group_of(make_job(resources=resources, kubernetes={"gpus_per_node": per_node}))
    assert (group["minReplicas"], group["replicas"]) == replicas
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == gpus


@pytest.mark.parametrize(
    ("resources", "section"),
    [
        ({"workers": 8}, {}),
        ({"workers": 1, "gpus_per_worker": 1}, {}),
        ({"workers": 8, "gpus_per_worker": 1}, {"gpu_resource": "nvidia.com/mig-1g.10gb"}),
    ],
)
def test_a_job_that_needs_no_nodes_is_rendered_without(make_job, resources, section):
    assert group_of(make_job(resources=resources, kubernetes=section))["replicas"] == resources["workers"]


@pytest.mark.parametrize(("section", "said"), [({}, "is not set"), ({"gpus_per_node": 1}, "is 1")])
def test_without_it_the_number_of_nodes_is_asked_for(make_job, section, said):
    with pytest.raises(JobError, match=rf"resources.nodes is missing.*gpus_per_node {said}") as caught:
        manifests(make_job(resources={"workers": 8, "gpus_per_worker": 2}, kubernetes=section))
    assert caught.value.at == ("resources", "workers")
    assert len(str(caught.value).splitlines()) == 3
