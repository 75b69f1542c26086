"""What `sinfo` prints, in the words of several versions and sites, and which of it can run a job."""

import re
from math import inf

import pytest

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.slurm.partitions import Nodes, check_partition, parse
from clustertrain.launchers.slurm.script import render

# A made-up site, in the columns of the real command: %P|%a|%l|%L|%s|%D|%c|%B|%m|%G
SITE = """\
cpu*|up|2-00:00:00|1:00:00|1-infinite|20|32|UNLIMITED|128000|(null)
gpu|up|1-00:00:00|n/a|1-4|6|64|UNLIMITED|512000|gpu:a100:4(S:0-1)
gpu|up|1-00:00:00|n/a|1-4|2|64|UNLIMITED|1024000|gpu:h100:8(S:0-1)
mig|up|infinite|n/a|1-infinite|3|16|UNLIMITED|64000|gpu:1g.5gb:7,gpu:a100:1,nvme:1
short|up|10:00|n/a|1-infinite|20|32|8|128000|(null)
untyped|up|infinite|n/a|1-infinite|4|8|UNLIMITED|16000|gpu:2
old|down|infinite|n/a|1-infinite|4|8|UNLIMITED|16000|gpu:2
closed|drain|infinite|n/a|1-infinite|4|8|UNLIMITED|16000|gpu:2
"""


def request(resources=None, **slurm):
    shape = resources or {"workers": 2, "nodes": 2}
    return Job.model_validate({"name": "a", "function": "m:f", "resources": shape, "slurm": slurm})


def test_partitions_are_read_with_all_their_kinds_of_nodes():
    found = {partition.name: partition for partition in parse(SITE)}
    assert list(found) == ["cpu", "gpu", "mig", "short", "untyped", "old", "closed"]
    assert [name for name, partition in found.items() if partition.is_default] == ["cpu"]
    assert (found["cpu"].time_limit_s, found["cpu"].job_time_s) == (2 * 86_400, 3600)
    assert (found["short"].time_limit_s, found["short"].job_time_s, found["mig"].job_time_s) == (
        600,
        600,
        inf,
    )
    assert (found["gpu"].max_nodes, found["cpu"].max_nodes) == (4, inf)
    assert found["gpu"].nodes == (
        Nodes(6, 64, 512000, "gpu:a100:4(S:0-1)"),
        Nodes(2, 64, 1024000, "gpu:h100:8(S:0-1)"),
    )
    mig = found["mig"].nodes[0]
    assert [mig.gpus(each) for each in (None, "1g.5gb", "a100", "h100")] == [8, 7, 1, 0]
    assert found["short"].nodes[0].cpus == 8  # MaxCPUsPerNode
    assert [found["old"].nodes[0].gpus(each) for each in (None, "a100")] == [2, 0]
    assert found["cpu"].nodes[0].gpus(None) == 0


def test_what_is_no_line_of_it_is_left_out():
    assert parse("") == []
    assert parse("CLUSTER: sim\n\ncpu*|up\n") == []


FITS = {
    "the default": (None, {}),
    "a named one": ("gpu", {"time_limit": "1d"}),
    "one of several": ("short,gpu", {"time_limit": "1h"}),
    "one that is down, for which SLURM queues jobs": ("old", {}),
    "all GPUs of a node": ("gpu", {"resources": {"nodes": 2, "gpus_per_node": 8}}),
    "a type": ("gpu", {"gpu_type": "a100", "resources": {"nodes": 4, "gpus_per_node": 4}}),
    "a slice": ("mig", {"gpu_type": "1g.5gb", "resources": {"nodes": 3, "gpus_per_node": 7}}),
    "the least of a range": ("gpu", {"resources": {"workers": [4, 40], "nodes": [4, 40]}}),
    "memory to the last": ("cpu", {"resources": {"workers": 1, "memory_per_worker": "125952Mi"}}),
}


@pytest.mark.parametrize(("wanted", "slurm"), FITS.values(), ids=FITS)
def test_what_fits_is_let_through(wanted, slurm):
    chosen = check_partition(request(**slurm), parse(SITE), wanted)
    assert chosen.name in (wanted or "cpu").split(",")


REFUSED = {
    "too long": (
        "short",
        {"time_limit": "20m"},
        "slurm.time_limit is 20m, and partition short allows 10m",
        "cpu",
    ),
    "too many nodes for a job": (
        "gpu",
        {"resources": {"workers": 5, "nodes": 5}},
        "resources.nodes is 5, and partition gpu allows at most 4 per job",
        "cpu, short",
    ),
    "too many nodes": (
        "mig",
        {"resources": {"workers": 4, "nodes": 4}},
        "resources.nodes is 4, with 1 CPUs each, and partition mig has 3 such nodes",
        "cpu, gpu, short",
    ),
    "too many GPUs": (
        "gpu",
        {"resources": {"workers": 3, "gpus_per_worker": 3}},
        "3 workers × 3 GPUs = 9 GPUs on each node, and a node of partition gpu has at most 8",
        "No partition here",
    ),
    "too many of a type": (
        "gpu",
        {"gpu_type": "a100", "resources": {"nodes": 1, "gpus_per_node": 8}},
        "GPUs of type a100 on each node, and a node of partition gpu has at most 4. "
        "It has gpu:a100:4(S:0-1), gpu:h100:8(S:0-1): without a type leave out slurm.gpu_type.",
        "No partition here",
    ),
    "too few nodes of a kind": (
        "gpu",
        {"resources": {"nodes": 3, "gpus_per_node": 8}},
        "resources.nodes is 3, with 8 CPUs, 8 GPUs each, and partition gpu has 2 such nodes",
        "could run it: mig.",
    ),
}


@pytest.mark.parametrize(("wanted", "slurm", "said", "remedy"), REFUSED.values(), ids=REFUSED)
def test_what_can_never_run_is_refused_with_the_arithmetic(wanted, slurm, said, remedy):
    with pytest.raises(ClusterError) as caught:
        check_partition(request(**slurm), parse(SITE), wanted)
    first, second = str(caught.value).splitlines()
    assert said in first
    assert remedy in second


def test_what_the_cluster_does_not_have_is_slurms_matter():
    assert check_partition(request(), parse(SITE), "gpus") is None
    without_default = [partition for partition in parse(SITE) if not partition.is_default]
    assert check_partition(request(), without_default, None) is None


@pytest.mark.parametrize(
    "resources",
    [
        {"workers": 3, "cpus_per_worker": 1.5, "memory_per_worker": "1Gi"},
        {"workers": 10, "cpus_per_worker": 1.1, "memory_per_worker": "1500MB"},
        {"workers": [2, 6], "nodes": [1, 3]},
        {"nodes": 2, "gpus_per_node": 4},
    ],
    ids=str,
)
def test_what_is_checked_is_what_is_asked_for(resources):
    """The least nodes that pass the check have the numbers of the #SBATCH lines."""
    job = request(resources)
    script = render(job, job_path="job.yaml", python="python3", lead_s=60).script.decode()
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", script, re.MULTILINE))
    count, cpus = int(asked["nodes"].partition("-")[0]), int(asked["cpus-per-task"])
    gpus = int(asked.get("gres", "gpu:0").removeprefix("gpu:"))
    memory_mib = int(asked.get("mem", "0M").removesuffix("M"))

    def passes(count, cpus, memory_mib, gpus):
        line = f"all*|up|infinite|n/a|1-infinite|{count}|{cpus}|UNLIMITED|{memory_mib}|gpu:{gpus}"
        try:
            return check_partition(job, parse(line), None).name == "all"
        except ClusterError:
            return False

    assert passes(count, cpus, memory_mib, gpus)
    for fewer in ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)):
        less = [max(0, had - one) for had, one in zip((count, cpus, memory_mib, gpus), fewer, strict=True)]
        assert not passes(*less) or less == [count, cpus, memory_mib, gpus]
