"""The steps before each start of the worker group, with Ray and without; all of them run in the driver.

In: the ranks of a group that exists, from driver/trainer.py (Ray) or forked.py. Out: ranks that call
worker/train.py, or a failure.

They claim the restart (only the newest one may write checkpoints), choose the checkpoint, stage the data,
and only then create the process group. A failure is recorded here (cause/), and retry_policy.py says what
follows it.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clustertrain.driver.calls import (
    NoAnswer,
    RankDied,
    Worker,
    answer,
    answers,
    answers_by_rank,
    first_of_each_node,
)
from clustertrain.driver.cause.failures import GroupFailures
from clustertrain.driver.group.resume import newest_checkpoint
from clustertrain.driver.world_size import resize_text
from clustertrain.errors import ClusterTrainError, RunStopped, StorageError
from clustertrain.job.model import Job
from clustertrain.node import variables
from clustertrain.node.ports import Ports, free_port
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.claims import has_script_checkpoint
from clustertrain.run_files.folder.run_dir import Attempt, Restart, RunDir
from clustertrain.run_files.provenance import is_tried
from clustertrain.run_files.records.claim import FunctionSeed, RestartClaim, ResumePoint
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.run_files.streams.step_counter import reached_step
from clustertrain.worker import setup
from clustertrain.worker.machine.storage_probe import read_by, read_nonces, remove_nonce, write_nonce
from clustertrain.worker.process_group import GroupSpec, join_process_group
from clustertrain.worker.restart_plan import RestartPlan
from clustertrain.worker.setup import worker_state
from clustertrain.worker.step_limit import UPPER_S

_MARGIN_S = 60.0  # for the watchdog of a rank, which ends the rank first, and names what it waits for
_LOOK_EVERY_S = 300.0  # for a rank that is stopped, while others stage data
_OTHERS_S = 5.0  # for the errors of the other ranks, when one has raised an error


class GroupNotStarted(Exception):
    """The start of a group failed before its training; its cause is recorded if it is known."""


@dataclass(kw_only=True)
class GroupStart:
    """One start of the worker group.

    A rank that was stopped has no watchdog that could end it, and before there is a process group no other
    rank notices it: each call of a start has a limit of its own.
    """

    ref: AttemptRef
    job_yaml: str
    job: Job = field(repr=False)  # its `env` has the values of the secrets
    most_workers: int = 1
    _group: GroupFailures | None = None  # until its failure is recorded

    @property
    def answer_s(self) -> float:
        """How long a rank may take for a call that stages nothing: it may have to import torch."""
        return self.job.failures.watchdog.first_step_s

    @property
    def collective_s(self) -> float:
        """The timeout of torch's process group."""
        limits = self.job.failures.watchdog
        longest_s = max(limits.first_step_s, limits.step_s or UPPER_S, limits.evaluation_s, limits.save_s)
        return int(longest_s + _MARGIN_S)

    def run(self, group: Any, set_up: Callable[[RestartPlan], None]) -> None:
        """Start the ranks of a group up to their process group; their training follows.

        Args:
            group: Ray Train's worker group, or a ForkedGroup. After an error its processes are to be ended.
            set_up: called in each rank first.

        Raises:
            GroupNotStarted: a rank has failed, has died, or does not answer.
            RunStopped: a stop was requested before this start.
            ClusterTrainError: the run was taken over, no checkpoint verifies, or a rank refuses.
        """
        workers = group.get_workers()
        plan = _claim(self, workers)
        try:
            self._group = GroupFailures(group, self.ref.open().restart(plan.restart))
            self._group.ranks.note_limits(self.answer_s)
            self._on_all(workers, set_up, plan)
            self._probe(workers, plan)
            self._stage(workers, plan)
            if self.job.is_script:
                self._on_all(workers, _set_rendezvous, *self._of_first(workers, _rendezvous_here))
            elif errors := self._make_process_group(workers, plan):
                self.has_failed(errors)
                raise GroupNotStarted("The process group could not be made.")
        except NoAnswer as error:
            self.has_lost_worker(error)
            what = "died" if isinstance(error, RankDied) else "did not answer"
            raise GroupNotStarted(f"A worker {what} before training began.") from error
        self._group.ranks.began_s = time.monotonic()
        EventLog(self.ref.open().events).write("group_started", **self._group.ranks.as_event())

    def has_failed(self, errors: Mapping[int, BaseException]) -> None:
        """Record the failure of the workers, by rank, unless a failure is recorded.

        All workers that still live are asked for the cause.
        """
        group, self._group = self._group, None
        if group is not None:
            group.report(errors)

    def has_lost_worker(self, error: NoAnswer) -> None:
        """Record that a worker has died, or does not answer, before its training began."""
        group, self._group = self._group, None
        if group is not None:
            group.report_lost_worker(error)

    def _make_process_group(self, workers: Sequence[Worker], plan: RestartPlan) -> dict[int, BaseException]:
        """Make the process group on all workers; return the errors of the ranks that raised one.

        Ray Train has no deadline for it, cannot name the ranks that are missing, and would end the run at
        such an error.

        Raises:
            NoAnswer: a worker has died, or does not answer.
            ClusterTrainError: a rank refuses.
        """
        address, port = self._of_first(workers, _address_and_port)
        self._on_all(workers, _set_rendezvous, address, port)
        self._on_all(workers, _set_ranks)
        hosts = tuple(w.metadata.hostname for w in workers)
        backend = "nccl" if plan.job.resources.gpus_per_worker else "gloo"
        spec = GroupSpec(backend, address, port, hosts, self.collective_s)
        joining = {rank: w.execute_async(join_process_group, spec) for rank, w in enumerate(workers)}
        try:
            answers([*joining.values()], self.job.failures.watchdog.process_group_s + _MARGIN_S)
        except (NoAnswer, ClusterTrainError):
            raise
        except Exception:  # noqa: BLE001  the errors of all ranks show the cause
            found = answers_by_rank(joining, _OTHERS_S)
            return {rank: error for rank, error in found.items() if isinstance(error, BaseException)}
        return {}

    def _probe(self, workers: Sequence[Worker], plan: RestartPlan) -> None:
        """Have every node write a file, then read the files of some others, then remove its own."""
        firsts = {w.distributed_context.node_rank: w for w in first_of_each_node(workers)}
        nonces = {node: secrets.token_hex(8) for node in firsts}

        def of(node: int) -> dict[int, str]:
            """Return the text of a node, and the texts of the nodes that it reads."""
            return {each: nonces[each] for each in (node, *read_by(node, len(firsts)))}

        for step in (write_nonce, read_nonces, remove_nonce):
            calls = [w.execute_async(step, plan.ref, plan.restart, n, of(n)) for n, w in firsts.items()]
            answers(calls, self.answer_s)

    def _stage(self, workers: Sequence[Worker], plan: RestartPlan) -> None:
        firsts = first_of_each_node(workers)
        self._fetch(firsts, setup.copy_checkpoint)
        if not plan.job.data:
            return
        self._fetch(workers[:1], setup.stage_data, "cluster")
        self._fetch(firsts, setup.stage_data, "node")
        self._on_all(workers, setup.find_data)

    def _fetch(self, workers: Sequence[Worker], function: Callable[..., Any], *args: Any) -> None:
        """Call what may take hours, and has limits of its own where a process runs."""
        calls = [w.execute_async(function, *args) for w in workers]
        while True:
            try:
                answers(calls, min(self.answer_s, _LOOK_EVERY_S))
                return
            except RankDied:
                raise
            except NoAnswer:
                if self._group is not None and self._group.ranks.stopped():
                    raise

    def _of_first(self, workers: Sequence[Worker], function: Callable[[], Any]) -> Any:
        return answer(workers[0].execute_async(function), self.answer_s)

    def _on_all(self, workers: Sequence[Worker], function: Callable[..., Any], *args: Any) -> None:
        answers([w.execute_async(function, *args) for w in workers], self.answer_s)


def _rendezvous_here() -> tuple[str, int]:
    """Return the address and port for the process group of a script.

    The port is from the job's block, if there is one.

    Raises:
        ClusterError: all ports of the block are taken.
    """
    address, port = _address_and_port()
    block = os.environ.get(variables.PORTS)
    return address, free_port(Ports.parse(block)) if block else port


def _address_and_port() -> tuple[str, int]:
    """Return the address of this node, and a port that is free there."""
    address = worker_state.place.address
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind(("", 0))
        return address, int(probe.getsockname()[1])


def _set_ranks() -> None:
    """Set the variables that torchrun sets, and the device for Accelerate.

    A script gets them from script.torchrun_environment.
    """
    place = worker_state.place
    os.environ |= {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "NODE_RANK": str(place.node_rank),
        "ACCELERATE_TORCH_DEVICE": str(place.device),
    }


def _set_rendezvous(address: str, port: int) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address, str(port)


def _claim(config: GroupStart, workers: Sequence[Worker]) -> RestartPlan:
    """Claim the next restart for this process, and decide what it resumes from.

    Raises:
        RunStopped: a stop was requested before this start.
        StorageError: a newer attempt has taken the run over, or no checkpoint verifies.
    """
    attempt, claimed_s = config.ref.open(), time.time()
    before, restart = _claimed(attempt)
    events = EventLog(attempt.events)
    # A script keeps its own checkpoints.
    found = None if config.job.is_script else newest_checkpoint(restart, workers)
    name, step, epoch, world_size = None, 0, 0, None
    if found is not None:
        name, step, epoch, world_size = str(found.name), found.name.step, found.epoch, found.world_size
    reached = _reached_before(restart)
    if not config.job.is_script and (found is not None or reached):
        events.write(
            "resumed",
            restart=restart.number,
            step=step,
            epoch=epoch,
            checkpoint=name,
            world_size=world_size,
            redone_steps=max(0, reached - step),
            in_memory=found is not None and found.in_memory,
        )
    resume = ResumePoint(
        name,
        step,
        world_size=len(workers),
        hosts=tuple(w.metadata.hostname for w in workers),
        addresses=tuple(w.metadata.node_ip for w in workers),
        of_script=config.job.is_script,
    )
    restart.plan.write(resume)
    earlier = before.plan.read() if before is not None else None
    if text := resize_text(earlier, resume, config.most_workers):
        events.write("resized", world_size=len(workers), of=config.most_workers, text=text)
    resumes_script = config.job.is_script and has_script_checkpoint(attempt.run)
    failures = [attempt.restart(n).failure.read() for n in range(restart.number)]
    plan = RestartPlan(
        config.ref,
        restart.number,
        config.job_yaml,
        config.job.env,
        name,
        resumes_script,
        alarms=sum(failure is not None and failure.error == "watchdog" for failure in failures),
        claimed_s=claimed_s,
        function_seed=_function_seed(attempt.run) if config.job.function is not None else 0,
        is_tried=is_tried(attempt),
        in_memory=found is not None and found.in_memory,
    )
    if config.job.is_script and (restart.number > 0 or attempt.n > 1):
        events.write("note", text=_script_line(plan))
    return plan


def _function_seed(run: RunDir) -> int:
    own = FunctionSeed(secrets.randbits(32))
    return own.value if run.function_seed.create(own) else (run.function_seed.read() or own).value


def _claimed(attempt: Attempt) -> tuple[Restart | None, Restart]:
    """Claim the next restart for this process; return the newest one before it, if any, and the claimed one.

    Raises as `_claim`.
    """
    if (stop := attempt.stop.read()) is not None:
        raise RunStopped(f"Stopped before the workers started ({stop.cause}).", checkpointed=False)
    newest = attempt.run.newest_attempt()
    if newest is None or newest.n != attempt.n:
        raise StorageError(
            f"Attempt {attempt.n} is no longer the newest of {attempt.run.uri}: another start took over."
        )
    before = attempt.newest_restart()
    restart = attempt.restart(before.number + 1 if before is not None else 0)
    if not restart.claim.create(RestartClaim(socket.gethostname(), os.getpid(), time.time())):
        raise StorageError(
            f"Restart {restart.number} of {attempt.uri} was claimed by another process at the same time."
        )
    return before, restart


def _script_line(plan: RestartPlan) -> str:
    """Return what is known of the point from which a script continues; its steps are not known."""
    if not plan.resumes_script:
        return "there is no file in the script's checkpoint folder: it is unknown whether it resumes"
    added = " ".join(plan.job.resume_args)
    return "the script has files in its checkpoint folder" + (
        f": its arguments end with {added}" if added else ""
    )


def _reached_before(restart: Restart) -> int:
    """Return the last step that the previous start of the group finished, in this attempt or an earlier one.

    It is 0 if the job was replaced since, because those steps are not steps of this job.
    """
    attempt = restart.attempt
    earlier = [each for each in attempt.restarts() if each.number < restart.number and each.plan.exists()]
    if earlier:
        return reached_step(earlier[-1])
    for each in reversed(attempt.run.attempts()):
        if each.n != attempt.n and (starts := [start for start in each.restarts() if start.plan.exists()]):
            return reached_step(starts[-1])
        changes = each.changes.read()
        if changes is not None and changes.starts_over:
            return 0
    return 0
