"""A run on a Ray cluster whose nodes go and come."""

import os
import signal
from pathlib import Path

import pytest

from support.ray_clusters import end_ray, start_ray


def second_node(cluster, name):
    """One more node of the cluster, with room for one worker."""
    folder = Path(cluster["RAY_AUTH_TOKEN_PATH"]).parent
    environment = {key: value for key, value in cluster.items() if key != "RAY_ADDRESS"}
    return start_ray(
        folder, name, environment, f"--address={cluster['RAY_ADDRESS']}", "--node-ip-address=127.0.0.2"
    )


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_lost_node_shrinks_the_group_and_one_that_comes_back_grows_it(make_run, cluster):
    """Each node has room for one worker. The loss is a failure; the way back is none and repeats no step."""
    node = second_node(cluster, "second")
    try:
        run = make_run(
            "elastic",
            task="faulty:Faulty",
            args={"step_s": 0.1},
            train={"epochs": 400, "global_batch_size": 6, "log_every": 1},
            checkpoint={"every": {"steps": 10}},
            resources={"workers": [1, 2], "cpus_per_worker": 2},
            failures={"resize_after": 3, "retries": 1},
        )
        run.start(**cluster).wait_for_step(12)
        end_ray(node)
        run.wait_for_start(1)
        run.wait_for_step(run.attempt.restart(1).plan.read().step + 5)
        node = second_node(cluster, "again")
        run.wait_for_start(2)
        run.wait_for_step(run.attempt.restart(2).plan.read().step + 5)
        run.process.send_signal(signal.SIGINT)
        output = run.end(75, all_gone=False)
    finally:
        end_ray(node)
    host = os.uname().nodename
    plans = [run.attempt.restart(number).plan.read() for number in (0, 1, 2)]
    assert [plan.world_size for plan in plans] == [2, 1, 2]
    assert f"1 of 2 workers: without {host} (127.0.0.2)\n" in output
    assert "there is room for 2 workers: the present 1 will save, and 2 continue\n" in output
    assert f"2 of 2 workers: with {host} (127.0.0.2)\n" in output
    assert [event["restart"] for event in run.events if event["kind"] == "worker_died"] == [0]
    assert output.count("restarting the workers") == 1
    assert output.count("stopping as requested") == 1  # the Ctrl-C, and not the save for a larger group
    resumed = [event for event in run.events if event["kind"] == "resumed"]
    assert resumed[-1]["redone_steps"] == 0 and resumed[-1]["world_size"] == 1
    assert (run.result.world_size, run.result.restarts) == (2, 2)


@pytest.mark.nightly  # tests/driver/test_elastic_workers.py has the rule; here Ray follows it
@pytest.mark.timeout(900)
def test_a_node_with_a_broken_gpu_is_used_no_more(make_run, cluster, tmp_path):
    node = second_node(cluster, "second")
    try:
        run = make_run(
            "broken",
            task="faulty:Faulty",
            args={"step_s": 0.1, "fault": "broken_gpu", "at_call": 8, "marker": str(tmp_path / "struck")},
            train={"steps": 150, "batch_size": 4, "log_every": 1},
            checkpoint={"every": {"steps": 5}},
            resources={"workers": [1, 2], "cpus_per_worker": 2},
            failures={"resize_after": 3, "retries": 1},
        )
        output = run.start(**cluster).end(0, all_gone=False)
    finally:
        end_ray(node)
    first, second = (run.attempt.restart(number).plan.read() for number in (0, 1))
    assert len(set(first.addresses)) == 2
    assert second.addresses == first.addresses[:1]
    assert (run.result.world_size, run.result.restarts, run.result.step) == (1, 1, 150)
    host = os.uname().nodename
    assert f"The next starts leave {host} out: the other nodes have room for the workers.\n" in output
    assert "there is room for 2 workers" not in output
