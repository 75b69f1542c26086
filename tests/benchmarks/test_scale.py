"""The counts of the control path, the laws that they follow, and the simulation."""

import importlib
import random
from functools import cache
from types import SimpleNamespace

import pytest
import scale
from scaling import control_path, report, tables
from scaling.control_path import ControlPath, claim_start
from scaling.counting_store import Counts
from scaling.growth import growth
from scaling.report import rows_of
from scaling.simulation import Storage, phase_s, stage_s

from clustertrain.checkpoints.write import Writer
from clustertrain.job.file import dump_job
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.streams.step_counter import Reached
from clustertrain.training.ranks.host import SaveProgress


@cache
def counted(ranks):
    return scale.counted(ranks, 2)


@pytest.fixture(scope="module")
def counts():
    """What a run of 8 ranks on 4 nodes did."""
    return counted(8)[0]


@pytest.fixture(scope="module")
def rows():
    return rows_of({ranks: counted(ranks)[0] for ranks in (8, 32, 128)})


@pytest.mark.parametrize(
    ("phase", "actor", "members", "operations"),
    [
        ("start", "rank", 7, {"append": 1}),  # the first line of its log
        ("start", "rank 0", 1, {"append": 1, "read": 2, "list": 1}),  # stop, save; leftovers
        ("start", "node", 3, {"list": 1, "read": 2, "write": 1}),  # the newest attempt, its claim, the head
        ("start", "node, probe", 4, {"write": 1, "read": 3, "remove": 1}),  # its own text, and log2(4) others
        ("a minute", "driver", 1, {"write": 30}),  # the heartbeat
        ("a minute", "rank 0", 1, {"read": 600}),
        ("a minute", "rank, stacks", 1, {"read": 60}),  # each rank: whether its stacks are wanted
        ("a minute", "node", 3, {"list": 200, "read": 200}),
        ("hang", "rank", 5, {"read": 1, "write": 1}),
        ("hang", "rank that expires, too", 2, {"create": 1, "write": 1}),
        ("restart", "rank", 7, {"append": 1}),
    ],
)
def test_what_an_actor_does_is_what_is_documented(counts, phase, actor, members, operations):
    use = counts.uses[phase, actor]
    assert len(use.members) == members
    assert dict(use.operations) == {kind: members * number for kind, number in operations.items()}


def test_only_status_grows_with_the_number_of_ranks(rows):
    by_law = {(row.phase, row.actor): row.growth.law for row in rows}
    assert [key for key, law in by_law.items() if law == "N"] == [("status", "command")]
    assert {key for key, law in by_law.items() if law == "log N"} == {
        ("start", "node, probe"),
        ("restart", "node, probe"),
    }
    assert by_law["start", "rank"] == by_law["a minute", "node"] == "constant"


def test_the_driver_claims_a_start_as_it_is_counted(tmp_path, monkeypatch):
    """The module of the driver imports torch, so the benchmark repeats its calls."""
    start = pytest.importorskip("clustertrain.driver.group.start")
    resume = importlib.import_module("clustertrain.driver.group.resume")
    monkeypatch.setattr(resume, "_newest_in_memory", lambda *args: None)
    worker = SimpleNamespace(metadata=SimpleNamespace(hostname="node1", node_ip="10.0.0.1"))

    def real(attempt, job):
        config = start.GroupStart(ref=AttemptRef.of(attempt), job_yaml=dump_job(job), job=job)
        start._claim(config, [worker])

    found = []
    for side, claim in (("real", real), ("counted", lambda attempt, job: claim_start(attempt, ("node1",)))):
        counts = Counts()
        path = ControlPath(tmp_path / side, 1, 1, counts)
        attempt = claim_attempt(path.run)
        with counts.of_this_process():
            for number in range(3):
                with counts.acting(str(number), "driver"):
                    claim(attempt, path.job)
                restart = attempt.restart(number)
                reached = Reached(restart.reached)
                reached.set(number)
                reached.close()
                shelf = attempt.run.checkpoints
                writer = Writer(shelf, 1, number, "0" * 64, {}, control_path.Retention(), lambda: True)
                progress = SaveProgress(
                    number + 1, 0, samples_seen=0, world_size=1, metrics={}, reason="steps"
                )
                writer.commit({"model.pt": lambda file: file.write(b"0")}, progress)
        found.append({key: use.operations for key, use in counts.uses.items()})
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("law", "values"),
    [
        ("constant", {64: 5.0, 256: 5.0, 1024: 5.0}),
        ("log N", {64: 6.0, 256: 8.0, 1024: 10.0}),
        ("N", {64: 64.0, 256: 256.0, 1024: 1024.0}),
        ("N", {64: 26.0, 256: 50.0, 1024: 146.0}),
        ("levels off", {64: 6690.0, 256: 21090.0, 1024: 24090.0}),
    ],
)
def test_the_law_of_three_values(law, values):
    found = growth(values)
    assert found.law == law
    assert found.at(1024) == pytest.approx(values[1024])
    assert found.at(256) == pytest.approx(values[256]) or law == "levels off"


def test_a_stage_takes_the_work_of_all_by_what_the_storage_does_at_a_time():
    storage = Storage(0.001, 10)
    assert stage_s(storage, 2000, 5, random.Random(1)) == pytest.approx(1.0, rel=0.05)
    alone = phase_s(storage, [(1, 1000), (0, 5), (1, 1000)], random.Random(1))
    assert alone == pytest.approx(2.0, rel=0.1)


def test_a_simulation_is_that_of_its_seed(rows, monkeypatch):
    monkeypatch.setattr(report, "SIMULATED", (8, 128))
    storages = {"this disk": Storage(0.001, 16)}
    first, again, other = (report.simulated_times(rows, storages, seed) for seed in (3, 3, 4))
    assert first == again != other


def test_the_tables_have_what_was_counted_and_with_which_command(monkeypatch, capsys):
    found = {ranks: counted(ranks) for ranks in (8, 32, 128)}  # before it is replaced
    for module in (report, tables):
        monkeypatch.setattr(module, "SIMULATED", (8, 128))
    monkeypatch.setattr(scale, "counted", lambda ranks, per_node, folder: found[ranks])
    monkeypatch.setattr(scale, "foreign_load", lambda: 0.1)
    monkeypatch.setattr("sys.argv", ["scale.py", "--ranks", "32", "8", "128", "--per-node", "2"])
    scale.main()
    text = capsys.readouterr().out
    assert "| command | `python benchmarks/scale.py --ranks 8 32 128 --per-node 2 --seed 1` |" in text
    assert "| processors used by others | 0.1 |" in text
    assert "| rank | 1 | 1 | 1 | constant |" in text
    assert "| node, probe | 5 | 7 | 9 | log N |" in text
    assert "| this disk |" in text and "(assumed)" in text
