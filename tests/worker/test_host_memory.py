"""The memory for the copies of saves, by limits of cgroups that a test writes down."""

import resource

import pytest
import torch

from clustertrain.checkpoints.save import bytes_of
from clustertrain.errors import ClusterError
from clustertrain.node.limits import Cgroup, Limits, read_limits
from clustertrain.worker.machine.host_memory import check_host_memory

GIB = 1 << 30


def limits(*cgroups, available=None):
    return Limits("host", tuple(cgroups), None, available, None, None, None, 1024, 1024, None)


POD = Cgroup("/kubepods/pod1", "memory.max", 64 * GIB, 0, 0, None, 44 * GIB)
NONE = Cgroup("/kubepods", "memory.max", None, 0, 0, None, 300 * GIB)


def test_a_copy_that_fits_is_made():
    check_host_memory(10 * GIB, 2, limits(POD, NONE, available=200 * GIB))
    check_host_memory(10 * GIB, 2, limits())


def test_the_copies_of_all_ranks_of_a_node_count():
    with pytest.raises(ClusterError) as refused:
        check_host_memory(12 * GIB, 2, limits(POD, NONE, available=200 * GIB))
    assert str(refused.value).splitlines()[0] == (
        "A save copies the state to host memory, here 2 × 12.0 GiB = 24.0 GiB, "
        "and /kubepods/pod1 (limit 64.0 GiB) has 20.0 GiB free."
    )
    with pytest.raises(ClusterError, match=r"and the node has 5\.0 GiB free"):
        check_host_memory(6 * GIB, 1, limits(POD, available=5 * GIB))


def test_the_use_of_a_cgroup_is_read_without_the_page_cache():
    own_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = [group.used_bytes for group in read_limits().cgroups if group.used_bytes is not None]
    assert all(0 <= used_bytes < 1 << 50 for used_bytes in found)
    assert not found or max(found) > own_bytes / 100


def test_tensors_on_the_host_are_not_copied_to_it():
    assert bytes_of({"model": {"a": torch.zeros(4)}, "rest": [torch.zeros(2), 3]}, only_on_gpus=True) == 0
