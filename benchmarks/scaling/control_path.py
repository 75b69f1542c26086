"""The phases of a run with any number of simulated ranks, by the functions of clustertrain that real ranks,
agents, drivers and commands call.

A rank is a task in a thread: its training is left out, and its process. So are Ray and torch; the driver's
part, whose module imports both, is repeated here call by call, and a test compares the two. What polls is
called once, and counted as often as its period fits into a minute.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

from clustertrain.checkpoints.read import newest_verified
from clustertrain.checkpoints.retention import Retention
from clustertrain.checkpoints.write import Writer
from clustertrain.job.identity import job_hash
from clustertrain.job.model import Job
from clustertrain.launchers.agent.head import _publish_rendezvous
from clustertrain.launchers.agent.node import NodeStart, PreparedNode, record_arrival
from clustertrain.launchers.agent.node_end import taken_over
from clustertrain.launchers.agent.worker import is_over
from clustertrain.launchers.slurm.agent.allocation import settings_of
from clustertrain.launchers.slurm.agent.end_policy import SlurmEndPolicy
from clustertrain.node.ports import Ports
from clustertrain.observe.display import Display
from clustertrain.observe.screen import Screen
from clustertrain.observe.status import read_files, status_by_files
from clustertrain.run_files.admission import Options, admit
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.claims import (
    Heartbeat,
    claim_of,
    committed_step,
    heartbeat_period_s,
    overtaken_by,
)
from clustertrain.run_files.command_line import UNKNOWN
from clustertrain.run_files.folder.run_dir import Attempt, Restart, RunDir
from clustertrain.run_files.provenance import is_tried
from clustertrain.run_files.recorded_job import is_of_script, job_of
from clustertrain.run_files.records.claim import FunctionSeed, RestartClaim, ResumePoint
from clustertrain.run_files.records.provenance import CodeSource
from clustertrain.run_files.records.result import Failure
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.run_files.rendezvous import wait_for_head
from clustertrain.run_files.result import stopped, write_result
from clustertrain.run_files.retry_budget import RetryBudget
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.rank_log import start_line
from clustertrain.run_files.streams.step_counter import Reached, reached_step
from clustertrain.storage import open_store
from clustertrain.training.ranks.host import SaveProgress
from clustertrain.worker import stacks
from clustertrain.worker.machine.storage_probe import read_by, read_nonces, remove_nonce, write_nonce
from clustertrain.worker.stop_requests import POLL_S, RequestPoller
from scaling.counting_store import Counts

PHASES = ("start", "a minute", "save", "failure", "hang", "restart", "status", "end")
_DISPLAY_S, _POLICY_S = 0.1, 2.0  # supervise/supervisor.py, agent/end_policy.py
_THREADS = 16


class ControlPath:
    """One run of `ranks` ranks, `per_node` of them on each node, with its files under `folder`."""

    def __init__(self, folder: Path, ranks: int, per_node: int, counts: Counts) -> None:
        self.counts, self.ranks, self.per_node = counts, ranks, per_node
        self.nodes = -(-ranks // per_node)
        self.names = tuple(f"node{number:05d}" for number in range(self.nodes))
        self.hosts = tuple(self.names[rank // per_node] for rank in range(ranks))
        fields = {"name": "scale", "function": "m:f", "storage": str(folder)}
        self.job = Job.model_validate({**fields, "resources": {"workers": ranks}})
        self.run = RunDir.newest(str(folder), "scale")
        self._folder = folder
        self.seconds: dict[str, float] = {}

    def run_all(self) -> None:
        """All phases, one after the other; what each takes is in `seconds`."""
        phases = (self.start, self.minute, self.save, self.fail, self.hang, self.restart, self.status)
        with self.counts.of_this_process():
            for name, phase in zip(PHASES, (*phases, self.end), strict=True):
                began_s = time.perf_counter()
                phase()
                self.seconds[name] = time.perf_counter() - began_s

    # -- actors ----------------------------------------------------------------------------------

    def _one(self, phase: str, actor: str, act: Callable[[], object]) -> None:
        with self.counts.acting(phase, actor):
            act()

    def _each(self, phase: str, actor: str, of: Iterable[int], act: Callable[[int], object]) -> None:
        """Every one of these nodes or ranks acts, some at the same time."""

        def task(number: int) -> None:
            with self.counts.acting(phase, actor, number):
                act(number)

        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(task, of))

    def _polled(
        self, phase: str, actor: str, period_s: float, look: Callable[[], object], number: int = 0
    ) -> None:
        """One look, counted as often as it happens in a minute."""
        with self.counts.acting(phase, actor, number):
            use = self.counts.uses[phase, actor]
            before, before_bytes = use.operations.copy(), use.moved_bytes
            look()
            more = round(60 / period_s) - 1
            for kind, done in (use.operations - before).items():
                use.operations[kind] += more * done
            use.moved_bytes += more * (use.moved_bytes - before_bytes)

    def _start_of(self, node: int) -> NodeStart:
        record = SchedulerStart("slurm", "1", {}, "0", self.names)
        return NodeStart(
            self.job, self.run, Options(), record, node, self._folder, (), settings_of(self.job), ""
        )

    def _node(self) -> PreparedNode:
        return PreparedNode("10.0.0.1", Ports(20000, 20099), Path("/token"), {})

    # -- phases ----------------------------------------------------------------------------------

    def start(self) -> None:
        """The head claims the attempt, the nodes find it, the driver starts the group, the ranks begin."""
        self._one("start", "head", self._head_claims)
        self._each("start", "node", range(1, self.nodes), self._node_arrives)
        self._one("start", "driver", self._driver_begins)
        self._start_group("start", number=0)

    def _head_claims(self) -> None:
        start = self._start_of(0)
        admission = admit(self.job, start.options, lambda line: None, run=self.run, allocation=start.record)
        assert admission.finished is None
        size = admission.world_size_of([self.ranks])
        attempt = self.attempt = admission.claim(size, CodeSource(), lambda line: None)
        _publish_rendezvous(start, self._node(), attempt)

    def _node_arrives(self, node: int) -> None:
        start = self._start_of(node)
        found = wait_for_head(self.run, start.record, 60, start.poll_s, lambda: False)
        assert found is not None
        record_arrival(start, found[0])

    def _driver_begins(self) -> None:
        job_of(self.attempt)
        claim_of(self.attempt)
        EventLog(self.attempt.events).write("ray_started", seconds=1.0, address="10.0.0.1:20000")
        self.attempt.stop.read()

    def _start_group(self, phase: str, number: int) -> None:
        """As driver/group/start.py: claim, probe of the storage, ranks, group_started."""
        restart = self.attempt.restart(number)
        with self.counts.acting(phase, "driver"):
            claim_start(self.attempt, self.hosts)
        self._probe(phase, number)
        self._each(phase, "rank", range(1, self.ranks), self._rank_begins(restart))
        self._one(phase, "rank 0", lambda: self._rank_0_begins(restart))
        self._each(phase, "node, NCCL", range(self.nodes), self._note_transport)
        ranks = [
            {"rank": rank, "host": host, "pid": 4711, "gpus": []} for rank, host in enumerate(self.hosts)
        ]
        with self.counts.acting(phase, "driver"):
            events = EventLog(self.attempt.events)
            events.write("group_started", restart=number, world_size=self.ranks, ranks=ranks)

    def _probe(self, phase: str, number: int) -> None:
        ref, nonces = AttemptRef.of(self.attempt), [secrets.token_hex(8) for _ in self.names]
        for step in (write_nonce, read_nonces, remove_nonce):

            def probe(node: int, step: Callable[..., None] = step) -> None:
                of = {each: nonces[each] for each in (node, *read_by(node, self.nodes))}
                step(ref, number, node, of)

            self._each(phase, "node, probe", range(self.nodes), probe)

    def _rank_begins(self, restart: Restart) -> Callable[[int], None]:
        def begin(rank: int) -> None:
            attempt = AttemptRef.of(self.attempt).open()
            self.counts.append_to(attempt.rank_log(self.hosts[rank], rank), start_line(restart.number))

        return begin

    def _note_transport(self, node: int) -> None:
        """As worker/process_group.py, on nodes with GPUs: what NCCL chose, as an event."""
        host = self.names[node]
        EventLog(self.attempt.node_events(host)).write("transport", host=host, text="InfiniBand")

    def _rank_0_begins(self, restart: Restart) -> None:
        self._rank_begins(restart)(0)
        self.poller = RequestPoller(self.attempt)
        Reached(restart.reached).close()
        shelf = self.attempt.run.checkpoints
        self.writer = Writer(
            shelf, self.attempt.n, restart.number, job_hash(self.job), {}, Retention(), self._still_newest
        )

    def _still_newest(self) -> bool:
        """As worker/rank.py."""
        attempt, restart = self.run.attempt(self.attempt.n + 1), self.attempt.restart(self.writer.restart + 1)
        return not attempt.claim.exists() and not restart.claim.exists()

    def minute(self) -> None:
        """A minute of training: heartbeat, requests, the supervisor's display, the agents' looks."""
        attempt = self.attempt
        heartbeat = Heartbeat(attempt)
        heartbeat._ended.set()  # so that it beats once
        self._polled("a minute", "driver", heartbeat_period_s(self.run), heartbeat._beat)
        self._polled("a minute", "rank 0", POLL_S, self.poller._poll_all)
        start = self._start_of(1)
        for node in range(1, self.nodes):
            self._polled("a minute", "node", start.poll_s, lambda: is_over(attempt), node)
        self._polled("a minute", "rank of a script", POLL_S, self.poller._poll_all)
        looks_s = attempt.restart(0).look_for_stacks_every_s(self.ranks)
        self._polled("a minute", "rank, stacks", looks_s, attempt.restart(0).stacks_request.read)
        display = Display(attempt, Screen(lambda line: None), UNKNOWN)
        for _ in range(2):
            display.update()  # what was written before this minute
        self._polled("a minute", "head", _DISPLAY_S, display.update)
        policy = SlurmEndPolicy(self._start_of(0), attempt, None, [], None, None)  # type: ignore[arg-type]
        self._polled("a minute", "head", _POLICY_S, lambda: taken_over(attempt))
        self._polled("a minute", "head", _POLICY_S, lambda: policy._failed_arrival(attempt, True))

    def save(self) -> None:
        """Rank 0 commits a checkpoint."""
        progress = SaveProgress(10, 0, samples_seen=0, world_size=self.ranks, metrics={}, reason="steps")

        def commit() -> None:
            made = self.writer.commit({"model.pt": lambda file: file.write(b"0" * 100)}, progress)
            saved = {"step": 10, "name": str(made.name), "bytes": made.size_bytes}
            events = EventLog(self.attempt.node_events(self.hosts[0]))
            events.write("checkpoint", **saved, blocking_s=0.1, write_s=0.1)
            EventLog(self.attempt.restart(0).metrics).write("train", step=10, loss=1.0)

        self._one("save", "rank 0", commit)

    def fail(self) -> None:
        """A rank dies; the driver records it, as in driver/cause/, and decides, as in retry_policy.py."""
        attempt, restart = self.attempt, self.attempt.restart(0)

        def record() -> None:
            rank = self.ranks - 1
            open_store(str(self._folder)).read_or_none(attempt.rank_log_key(self.hosts[rank], rank))
            step = reached_step(restart)
            failure = Failure(rank, "signal", "rank died", "signal 9", signal=9, transient=True, step=step)
            restart.failure.write(failure)
            EventLog(attempt.events).write("worker_died", rank=rank, text=failure.text, step=step)
            newest = attempt.newest_restart()
            assert newest is not None
            newest.failure.read()
            attempt.stop.read()
            is_of_script(attempt)
            RetryBudget.of(attempt, 3).is_over_after(committed_step(attempt.run))
            EventLog(attempt.events).write("restarting", restart=1, of=3, step=step, text=failure.text)

        self._one("failure", "driver", record)

    def hang(self) -> None:
        """In another start a rank hangs: it and two more expire, and the others write their stacks."""
        restart = self.attempt.restart(0)
        with patch.object(stacks.threading, "Thread"):
            late = [stacks.Stacks(restart, rank, self.ranks) for rank in range(self.ranks)]
        with patch.multiple(stacks, _of_all_threads=str, _WAIT_FOR_OTHERS_S=0.0):
            self._one("hang", "first rank, a look", late[0].share)
            self._each("hang", "rank that expires, too", range(1, 3), lambda rank: late[rank].share())
            self._each("hang", "rank", range(3, self.ranks), lambda rank: late[rank].follow_first())

    def restart(self) -> None:
        """The group starts again from the checkpoint."""
        self._start_group("restart", number=1)

    def status(self) -> None:
        """The command `status` while the run trains."""
        self._one("status", "command", lambda: status_by_files(read_files(self.run)).step)

    def end(self) -> None:
        """The driver writes the result, and each agent finds it."""
        self._one("end", "driver", lambda: write_result(self.attempt, stopped(self.attempt)))
        self._each("end", "node", range(1, self.nodes), lambda node: is_over(self.attempt))


def claim_start(attempt: Attempt, hosts: tuple[str, ...]) -> None:
    """What driver/group/start.py's `_claim` does on the storage for a function without changes: it
    cannot be imported without torch."""
    attempt.stop.read()
    attempt.run.newest_attempt()
    before = attempt.newest_restart()
    restart = attempt.restart(before.number + 1 if before is not None else 0)
    restart.claim.create(RestartClaim(socket.gethostname(), os.getpid(), time.time()))
    events = EventLog(attempt.events)
    checkpoint = newest_verified(
        attempt.run.checkpoints,
        lambda name, error: None,
        attempt.checkpoint_copy,
        lambda name: overtaken_by(name, restart) is None,
    )
    step, name = (checkpoint.manifest.step, str(checkpoint.name)) if checkpoint is not None else (0, None)
    earlier = [each for each in attempt.restarts() if each.number < restart.number and each.plan.exists()]
    reached = reached_step(earlier[-1]) if earlier else 0
    if not earlier:
        for each in reversed(attempt.run.attempts()):
            each.changes.read()
    if name is not None or reached:
        redone = max(0, reached - step)
        events.write("resumed", restart=restart.number, step=step, checkpoint=name, redone_steps=redone)
    addresses = tuple("10.0.0.1" for _ in hosts)
    restart.plan.write(ResumePoint(name, step, len(hosts), hosts, addresses))
    if before is not None:
        before.plan.read()
    for number in range(restart.number):
        attempt.restart(number).failure.read()
    if not attempt.run.function_seed.create(FunctionSeed(0)):
        attempt.run.function_seed.read()
    is_tried(attempt)
