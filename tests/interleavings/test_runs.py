"""The protocols of a run: the claim of an attempt, the fence of a restart, a takeover, commit and prune of a
checkpoint, and the result; on both kinds of storage."""

from copy import copy

import pytest
from schedule import NIGHTLY, Process, explore, explore_at_random, outcomes
from starts import Start

from clustertrain.checkpoints.manifest import CheckpointName, names
from clustertrain.checkpoints.read import verify
from clustertrain.driver.group import resume
from clustertrain.errors import ClusterError, ClusterTrainError, StorageError
from clustertrain.run_files import admission
from clustertrain.run_files.admission import Options
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import ended, write_result
from support.starts import claim_next_attempt


@pytest.fixture(autouse=True)
def the_protocol_alone(monkeypatch):
    """The checkpoints of these schedules are in the storage. What an attempt was started from is written to
    its own folder, and decides nothing."""
    monkeypatch.setattr(resume, "_newest_in_memory", lambda *args: None)
    monkeypatch.setattr(admission, "record_provenance", lambda attempt, source, began: None)


def begin(job, **options):
    """A start of the job: its attempt, or the result of a finished run."""
    return claim_next_attempt(job, Options(**options), lambda: (1,), lambda line: None)[1]


@pytest.mark.parametrize("before", ["new", pytest.param("continued", marks=pytest.mark.nightly)])
def test_of_two_starts_one_is_let_in(world, job, before):
    """They run on one machine, so each sees whether the other one lives."""
    made = job(storage=world.storage)
    if before == "continued":
        write_result(claim_attempt(RunDir.newest(world.storage, "a")), Result("failed", "error", 1))
    world.keep()

    def scenario():
        world.begin()

        def check(schedule):
            found = list(outcomes(schedule))
            let_in = [each for each in found if isinstance(each, Attempt)]
            refused = [each for each in found if isinstance(each, ClusterError)]
            assert len(let_in) + len(refused) == len(found), found
            assert len(let_in) == 1 if len(found) == 2 else len(let_in) <= 1, found
            assert_no_gap(RunDir.newest(world.storage, "a"))

        return [Process(n, lambda: begin(made)) for n in range(2)], check

    explore(scenario, losses=world.kind == "s3")


def assert_no_gap(run):
    """A fence looks for the next claim only."""
    claimed = [attempt.n for attempt in run.attempts() if attempt.claim.exists()]
    assert claimed == list(range(1, len(claimed) + 1)), claimed


def assert_continues(run, starts, job):
    """A later start resumes from a whole checkpoint, with every step that a start has committed. So does each
    of these starts, which are in the order of their claims."""
    last = Start(claim_attempt(run, number=run.newest_attempt().n + 1), job).begin()
    for earlier, later in pairs([*starts, last]):
        for lines in earlier.committed:
            assert later.lines[: len(lines)] == lines, f"{later.resumed} has not {lines}"
    if last.resumed is not None:
        verify(run.checkpoints, last.resumed)


def pairs(starts):
    begun = [start for start in starts if start.has_begun]
    return [(earlier, later) for n, later in enumerate(begun) for earlier in begun[:n]]


def assert_fenced(schedule, claim):
    """The first process commits only after it has looked for the claim of the second one, and found none."""
    ours = [
        line
        for line in schedule.trace
        if line.endswith(claim) and line.split()[1] in ("open", "GET", "link", "PUT")
    ]
    commits = [
        line
        for line in schedule.trace
        if line.startswith("A ") and "MANIFEST.json" in line and ("PUT" in line or "xb" in line)
    ]
    if commits:
        assert ours[0].startswith("A "), "it commits, and was overtaken before it looked"
        assert schedule.trace.index(ours[0]) < schedule.trace.index(commits[0]), "it commits before it looks"


def assert_documented(schedule):
    for outcome in outcomes(schedule):
        assert not isinstance(outcome, Exception) or isinstance(outcome, ClusterTrainError), repr(outcome)


@pytest.mark.parametrize("fence", ["of an attempt", "of a restart"])
def test_a_start_that_was_overtaken_commits_nothing_that_counts(world, job, fence):
    """The heartbeat of the first start is lost, or its driver; its rank goes on saving."""
    made = job(storage=world.storage)
    first = Start(claim_attempt(RunDir.newest(world.storage, "a")), made).begin()
    first.train(10)
    world.keep()

    def scenario():
        world.begin()
        old = copy(first)
        old.committed = first.committed[:]
        attempt = old.attempt

        def overtakes():
            mine = attempt if fence == "of a restart" else claim_attempt(attempt.run, number=2)
            new.attempt = mine
            new.begin()
            new.train(CheckpointName.parse(new.resumed).step + 5)

        new = Start(attempt, made)

        def check(schedule):
            assert_documented(schedule)
            assert isinstance(schedule.processes[0].outcome, StorageError | None)
            if not schedule.processes[1].crashed:
                assert schedule.processes[1].outcome is None, schedule.processes[1].outcome
            assert_continues(attempt.run, [old, new], made)
            assert_fenced(
                schedule, "restarts/1/claim.json" if fence == "of a restart" else "attempts/2/claim.json"
            )

        return [Process(0, lambda: old.train(20)), Process(1, overtakes)], check

    if NIGHTLY or (world.kind, fence) == ("files", "of an attempt"):
        explore(scenario)
    if NIGHTLY or (world.kind, fence) != ("files", "of an attempt"):  # all choices of the others take minutes
        explore_at_random(scenario, range(3000 if NIGHTLY else 200), losses=world.kind == "s3")


def test_a_start_that_was_overtaken_collects_nothing_of_the_newer_one(world, job):
    """Its rank 0 begins when the newer one is already saving."""
    run = RunDir.newest(world.storage, "a")
    old, new = (Start(claim_attempt(run), job(storage=world.storage)).begin() for _ in range(2))
    world.keep()

    def scenario():
        world.begin()

        def check(schedule):
            assert_documented(schedule)
            if not schedule.processes[1].crashed:
                assert schedule.processes[1].outcome is None, schedule.processes[1].outcome
                verify(run.checkpoints, "00000020-2.0")

        late, saving = old.writer.__post_init__, copy(new)
        saving.committed = []
        return [Process(0, late), Process(1, lambda: saving.train(20))], check

    explore(scenario)


def test_a_run_is_never_seen_without_a_checkpoint(world, job):
    """A start that sees none starts over: its listing must not fall into the gap between commit and prune."""
    first = Start(claim_attempt(RunDir.newest(world.storage, "a")), job(storage=world.storage)).begin()
    first.train(10)
    shelf = first.attempt.run.checkpoints
    world.keep()

    def scenario():
        world.begin()

        def check(schedule):
            assert_documented(schedule)
            if not schedule.processes[1].crashed:
                assert schedule.processes[1].outcome

        writer = copy(first)
        writer.committed = []
        return [Process(0, lambda: writer.train(20, 30)), Process(1, lambda: names(shelf))], check

    explore(scenario)


def test_the_result_is_written_once(world, job):
    """By the driver, or by its supervisor when that one has died; both go on with the one that is stored."""
    attempt = claim_attempt(RunDir.newest(world.storage, "a"))
    world.keep()
    results = [Result("done", "finished", 0, ended_at=1.0), Result("failed", "driver_died", 1, ended_at=2.0)]

    def scenario():
        world.begin()

        def check(schedule):
            stored = attempt.result.read()
            for outcome in outcomes(schedule):
                assert outcome == stored is not None, outcome

        return [
            Process(n, lambda each=each: write_result(attempt, each)) for n, each in enumerate(results)
        ], check

    explore(scenario, losses=world.kind == "s3")


def test_three_starts_at_random(world, job):
    """On three machines: the heartbeat of each is lost for the others, and each trains to its end."""
    made = job(storage=world.storage)
    world.keep()

    def scenario():
        world.begin()
        starts = []

        def lives():
            attempt = begin(made)
            if not isinstance(attempt, Attempt):
                return
            starts.append(start := Start(attempt, made))
            start.begin()
            step = CheckpointName.parse(start.resumed).step if start.resumed else 0
            start.train(step + 5, step + 10)
            write_result(attempt, ended(attempt, "done", "finished"))

        def check(schedule):
            assert_documented(schedule)
            run = RunDir.newest(world.storage, "a")
            assert_no_gap(run)
            starts.sort(key=lambda start: start.attempt.n)
            assert_continues(run, starts, made)

        return [Process(n, lives, host=f"machine {n}") for n in range(3)], check

    explore_at_random(scenario, range(3000 if NIGHTLY else 120), losses=world.kind == "s3")
