"""The ranks of a SLURM job follow the order in which SLURM lists its nodes."""

from types import SimpleNamespace

import pytest
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

from clustertrain.driver import trainer
from clustertrain.node import variables


class Placed:
    """A worker as Ray Train has it after its start; `distributed_context` gets its ranks."""

    def __init__(self, host, gpu):
        self.metadata = SimpleNamespace(
            hostname=host, node_id=host, node_ip=host, accelerator_ids={"GPU": [gpu]}, gpu_ids=[gpu]
        )
        self.distributed_context, self.resources = None, {"GPU": 1}


PLACED = [("n3.site", 1), ("n1", 0), ("n10", 0), ("n3.site", 0), ("n1", 1), ("n10", 1)]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("n1,n3,n10", [("n1", 0), ("n1", 1), ("n3.site", 0), ("n3.site", 1), ("n10", 0), ("n10", 1)]),
        # Nodes that are not named come last, in Ray's order.
        ("n10", [("n10", 0), ("n10", 1), ("n3.site", 0), ("n3.site", 1), ("n1", 0), ("n1", 1)]),
        ("", [("n3.site", 0), ("n3.site", 1), ("n1", 0), ("n1", 1), ("n10", 0), ("n10", 1)]),
    ],
)
def test_a_group_gets_its_ranks_in_this_order(monkeypatch, nodes, expected):
    """`_create_workers` of Ray assigns ranks in its own order first."""
    monkeypatch.setattr(
        WorkerGroup,
        "_create_workers",
        lambda self, *args, **fields: WorkerGroup._assign_worker_ranks([Placed(*each) for each in PLACED]),
    )
    monkeypatch.setenv(variables.NODES, nodes)
    group = object.__new__(trainer._Group)
    config = SimpleNamespace(start=SimpleNamespace())
    group._train_run_context = SimpleNamespace(backend_config=config)
    workers = group._create_workers(6, None, {})
    assert [(w.metadata.hostname, w.metadata.gpu_ids[0]) for w in workers] == expected
    ranks = [w.distributed_context for w in workers]
    assert [r.world_rank for r in ranks] == list(range(6))
    assert [r.local_rank for r in ranks] == [0, 1] * 3
    assert [r.node_rank for r in ranks] == [0, 0, 1, 1, 2, 2]
