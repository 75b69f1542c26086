"""The steps before each start of the worker group; all of them run in Ray Train's controller.

It claims the restart (only the newest one may write checkpoints), chooses the checkpoint, stages the data,
and only then creates the process group. failures.py and retry_policy.py handle a failure.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.util
from ray.exceptions import RayActorError, RayTaskError
from ray.train.backend import Backend
from ray.train.torch import TorchConfig, get_device

from clustertrain import variables
from clustertrain.checkpoints.manifest import CheckpointDamaged, CheckpointName
from clustertrain.checkpoints.read import newest_verified
from clustertrain.driver.elastic_cluster import alive_nodes
from clustertrain.driver.memory_of_nodes import newest_in_memory
from clustertrain.driver.ray_internals import ERROR_LOGGER
from clustertrain.driver.retry_policy import RetryPolicy
from clustertrain.driver.world_size import resize_text
from clustertrain.errors import ClusterTrainError, RunStopped, StorageError
from clustertrain.job.file import parse_job
from clustertrain.node.ports import Ports, free_port
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.claims import has_script_checkpoint, overtaken_by
from clustertrain.run.folder import JOB_YAML, Restart
from clustertrain.run.records import RestartClaim, ResumePoint
from clustertrain.run.streams.events import EventLog
from clustertrain.run.streams.step_counter import reached_step
from clustertrain.worker import setup
from clustertrain.worker.machine.storage_probe import read_by, read_nonces, remove_nonce, write_nonce
from clustertrain.worker.process_group import GroupSpec, join_process_group
from clustertrain.worker.restart_plan import RestartPlan

_OTHERS_S = 5.0  # for the errors of the other ranks, when one has raised an error


@dataclass(kw_only=True)
class KitTorchConfig(TorchConfig):  # type: ignore[misc]  # ray ships no types
    """TorchConfig for all three entry points: data is staged before the process group is created.

    `watch` is told of each start of the workers; Ray's public callbacks have no hook for that.
    """

    watch: RetryPolicy
    job_yaml: str
    env: dict[str, str] = field(default_factory=dict, repr=False)
    is_script: bool = False
    most_workers: int = 1

    @property
    def backend_cls(self) -> type[Backend]:
        return KitBackend

    @property
    def train_func_context(self) -> Any:
        # A script's parent must not touch CUDA: it would hold memory on the child's device.
        return contextlib.nullcontext if self.is_script else super().train_func_context


class KitBackend(Backend):  # type: ignore[misc]  # ray ships no types
    """Runs in the controller, once before each start of the worker group."""

    share_cuda_visible_devices = True  # as Ray's own for torch: LOCAL_RANK is an index into them

    def on_start(self, worker_group: Any, backend_config: KitTorchConfig) -> None:
        watch = backend_config.watch
        plan = _claim(watch.ref, backend_config, worker_group.get_workers())
        try:
            watch.group_exists(worker_group, plan.restart)
            worker_group.execute(setup.set_up_process, plan, ERROR_LOGGER)
            self._probe(worker_group, plan)
            self._stage(worker_group, plan)
            if backend_config.is_script:
                address, port = worker_group.execute_single(0, _rendezvous_here)
                worker_group.execute(_set_rendezvous, address, port)
            else:
                errors = self._make_process_group(worker_group, backend_config)
                if errors:
                    watch.has_failed(errors)
                    _end_group(worker_group)
                    raise watch.failed_start("The process group could not be made.")
        except RayActorError as error:
            watch.has_lost_worker(error)
            _end_group(worker_group)
            raise watch.failed_start("A worker died before training began.") from error

    def on_training_start(self, worker_group: Any, backend_config: KitTorchConfig) -> None:
        backend_config.watch.has_started()

    def _make_process_group(self, worker_group: Any, config: KitTorchConfig) -> dict[int, BaseException]:
        """As Ray Train, which has no deadline for it and cannot name the ranks that are missing. Returns the
        errors of the ranks that raised one; Ray Train would end the run.

        Raises:
            RayActorError: a worker has died.
            ClusterTrainError: a rank refuses.
        """
        address, port = worker_group.execute_single(0, _address_and_port)
        worker_group.execute(_set_rendezvous, address, port)
        worker_group.execute(_set_ranks)
        hosts = tuple(w.metadata.hostname for w in worker_group.get_workers())
        backend = "nccl" if worker_group.get_resources_per_worker().get("GPU", 0) else "gloo"
        spec = GroupSpec(backend, address, port, hosts, config.timeout_s)
        joining = worker_group.execute_async(join_process_group, spec)
        try:
            ray.get(joining)
        except RayTaskError as error:
            if isinstance(error, ClusterTrainError):
                raise
            return _errors_of(joining)
        return {}

    def on_shutdown(self, worker_group: Any, backend_config: KitTorchConfig) -> None:
        """Does nothing: the processes end right after this, and destroying the group would wait 30 s for dead
        ranks."""

    def _probe(self, worker_group: Any, plan: RestartPlan) -> None:
        """Every node writes a file, then each reads those of some others, then each removes its own."""
        firsts = {w.distributed_context.node_rank: w for w in _first_of_each_node(worker_group)}
        nonces = {node: secrets.token_hex(8) for node in firsts}

        def of(node: int) -> dict[int, str]:
            """The text of a node, and those that it reads."""
            return {each: nonces[each] for each in (node, *read_by(node, len(firsts)))}

        for step in (write_nonce, read_nonces, remove_nonce):
            tasks = (w.execute_async(step, plan.ref, plan.restart, n, of(n)) for n, w in firsts.items())
            ray.get(list(tasks))

    def _stage(self, worker_group: Any, plan: RestartPlan) -> None:
        firsts = _first_of_each_node(worker_group)
        ray.get([w.execute_async(setup.copy_checkpoint) for w in firsts])
        if not plan.job.data:
            return
        ray.get(worker_group.execute_single_async(0, setup.stage_data, "cluster"))
        ray.get([w.execute_async(setup.stage_data, "node") for w in firsts])
        worker_group.execute(setup.find_data)


def _errors_of(tasks: Sequence[Any]) -> dict[int, BaseException]:
    """The exceptions of the tasks that have raised one by now, by rank."""
    ended, _ = ray.wait(list(tasks), num_returns=len(tasks), timeout=_OTHERS_S)
    errors: dict[int, BaseException] = {}
    for rank, task in enumerate(tasks):
        if task in ended:
            try:
                ray.get(task)
            except RayTaskError as error:
                errors[rank] = error.cause
            except RayActorError as error:
                errors[rank] = error
    return errors


def _first_of_each_node(worker_group: Any) -> list[Any]:
    return [w for w in worker_group.get_workers() if w.distributed_context.local_rank == 0]


def _end_group(worker_group: Any) -> None:
    """End all processes of a group whose start failed in a callback. Ray Train does not: those that wait in
    the rendezvous would keep their CPUs and GPUs, and the next start would wait for them forever."""
    for w in worker_group.get_workers():
        ray.kill(w.actor)
    worker_group.abort()


def _rendezvous_here() -> tuple[str, int]:
    """The address and port for the process group of a script; the port is from the job's block, if there is
    one.

    Raises:
        ClusterError: all ports of the block are taken.
    """
    address, port = _address_and_port()
    block = os.environ.get(variables.PORTS)
    return address, free_port(Ports.parse(block)) if block else port


def _address_and_port() -> tuple[str, int]:
    """The address of this node, and a port that is free there."""
    address = ray.util.get_node_ip_address()
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind(("", 0))
        return address, int(probe.getsockname()[1])


def _set_ranks() -> None:
    """Set the variables that torchrun sets, and the device for Accelerate. A script gets them from
    script.torchrun_environment."""
    context = ray.train.get_context()
    os.environ |= {
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "NODE_RANK": str(context.get_node_rank()),
        "ACCELERATE_TORCH_DEVICE": str(get_device()),
    }


def _set_rendezvous(address: str, port: int) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address, str(port)


def _claim(ref: AttemptRef, config: KitTorchConfig, workers: Sequence[Any]) -> RestartPlan:
    """Claim the next restart for this process, and decide what it resumes from.

    Raises:
        RunStopped: a stop was requested before this start.
        StorageError: a newer attempt has taken the run over, or no checkpoint verifies.
    """
    attempt = ref.open()
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
    events = EventLog(attempt.events)
    checkpoint = None
    if not config.is_script:  # a script keeps its own checkpoints

        def fell_back(name: CheckpointName, error: CheckpointDamaged) -> None:
            events.write("fallback", checkpoint=str(name), why=str(error))

        def counts(name: CheckpointName) -> bool:
            if (by := overtaken_by(name, restart)) is None:
                return True
            over = f"attempt {by.attempt.n}, restart {by.number} had taken over before it was committed"
            events.write("warning", text=f"checkpoint {name} is passed over: {over}")
            return False

        checkpoint = newest_verified(attempt.run.checkpoints, fell_back, attempt.checkpoint_copy, counts)
    step, epoch, world_size = 0, 0, None
    name = None
    if checkpoint is not None:
        manifest = checkpoint.manifest
        name, step, epoch, world_size = (
            str(checkpoint.name),
            manifest.step,
            manifest.epoch,
            manifest.world_size,
        )
    kept = None
    if before is not None and not config.is_script:
        keeps_best = parse_job(config.job_yaml, JOB_YAML).checkpoint.keep_best is not None
        kept = newest_in_memory(restart, workers, committed_step=step, keeps_best=keeps_best)
    if kept is not None:
        name, step, epoch, world_size = str(kept.name), kept.name.step, kept.epoch, kept.world_size
    reached = _reached_before(restart)
    if not config.is_script and (name is not None or reached):
        events.write(
            "resumed",
            restart=restart.number,
            step=step,
            epoch=epoch,
            checkpoint=name,
            world_size=world_size,
            redone_steps=max(0, reached - step),
            in_memory=kept is not None,
        )
    resume = ResumePoint(
        name,
        step,
        world_size=len(workers),
        hosts=tuple(w.metadata.hostname for w in workers),
        addresses=tuple(w.metadata.node_ip for w in workers),
    )
    restart.plan.write(resume)
    earlier = before.plan.read() if before is not None else None
    if text := resize_text(earlier, resume, config.most_workers, alive_nodes):
        events.write("resized", world_size=len(workers), of=config.most_workers, text=text)
    resumes_script = config.is_script and has_script_checkpoint(attempt.run)
    failures = [attempt.restart(n).failure.read() for n in range(restart.number)]
    plan = RestartPlan(
        ref,
        restart.number,
        config.job_yaml,
        config.env,
        name,
        resumes_script,
        alarms=sum(failure is not None and failure.error == "watchdog" for failure in failures),
        in_memory=kept is not None,
    )
    if config.is_script and (restart.number > 0 or attempt.n > 1):
        events.write("note", text=_script_line(plan))
    return plan


def _script_line(plan: RestartPlan) -> str:
    """What is known of the point from which a script continues; its steps are not."""
    if not plan.resumes_script:
        return "there is no file in the script's checkpoint folder: it is unknown whether it resumes"
    added = " ".join(plan.job.resume_args)
    return "the script has files in its checkpoint folder" + (
        f": its arguments end with {added}" if added else ""
    )


def _reached_before(restart: Restart) -> int:
    """The last step that the previous start of the group finished, in this attempt or an earlier one, or 0 if
    the job was replaced since, because its steps are not those of this job."""
    attempt = restart.attempt
    earlier = [each for each in attempt.restarts() if each.number < restart.number and each.plan.exists()]
    if earlier:
        return reached_step(earlier[-1])
    for each in reversed(attempt.run.attempts()):
        if each.n != attempt.n and (last := each.newest_restart()) is not None:
            return reached_step(last)
        changes = each.changes.read()
        if changes is not None and changes.starts_over:
            return 0
    return 0
