"""Job → TorchTrainer.fit → result.json; the process that the guardian starts.

It writes to files only: what the user sees is drawn from them. It ends with os._exit, since Ray's own
shutdown waits for processes that the guardian ends faster.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from importlib import import_module
from typing import Any

from clustertrain import variables
from clustertrain.driver.connect import connect_to_own, connect_to_pods, in_a_pod, own_head, own_head_is_gone
from clustertrain.driver.outcome import of_error, of_outcome
from clustertrain.errors import EXIT_FAILED, ClusterError, ClusterTrainError, RunStopped
from clustertrain.job.file import parse_job
from clustertrain.job.model import Job
from clustertrain.node.ray_settings import OBJECT_STORE_BYTES, RAY_ENVIRONMENT, WORKER_SLOT
from clustertrain.run.attempt_ref import AttemptRef
from clustertrain.run.claims import Heartbeat, claim_of
from clustertrain.run.events import EventLog
from clustertrain.run.folder import Attempt
from clustertrain.run.result import write_result
from clustertrain.worker.gpus import check_gpus
from clustertrain.worker.user_code import code_folder


class _CodeCheck(threading.Thread):
    """Imports the user's code, torch and Ray Train while Ray's processes start: 2 s of waiting put to use."""

    def __init__(self, job: Job) -> None:
        super().__init__(name="code-check", daemon=True)
        self._job = job
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            from clustertrain.worker.user_code import check_code

            check_code(self._job)
            import_module("clustertrain.driver.retry_policy")
            import_module("clustertrain.driver.backend")
            import_module("clustertrain.driver.trainer")
        except BaseException as error:  # noqa: BLE001  handed over to the main thread, which raises it
            self.error = error

    def wait(self) -> None:
        self.join()
        if self.error is not None:
            raise self.error


def main(ref_text: str) -> int:
    """Run the attempt that an AttemptRef names; returns the exit code that result.json names."""
    ref = AttemptRef.from_text(ref_text)
    attempt = ref.open()
    job_yaml = (attempt.run.store.read_or_none(attempt.job_key) or b"").decode()
    job = parse_job(job_yaml, attempt.run.store.uri(attempt.job_key))
    with Heartbeat(attempt):
        try:
            _fit(attempt, ref, job, job_yaml)
            result = of_outcome(attempt)
        except BaseException as error:  # noqa: BLE001  whatever it was becomes the result, and its traceback is logged
            traceback.print_exc()
            if not isinstance(error, ClusterTrainError | RunStopped) and own_head_is_gone():
                return EXIT_FAILED  # the node's agent knows how Ray ended, and writes the result
            result = of_error(attempt, error)
        return write_result(attempt, result).exit_code


def _fit(attempt: Attempt, ref: AttemptRef, job: Job, job_yaml: str) -> None:
    os.environ.update(RAY_ENVIRONMENT)
    os.environ.update(job.env)
    code = code_folder(job)
    sys.path.insert(0, code)
    os.chdir(code)
    import_module("ray")  # before the thread: two threads may not load one package at once
    check = _CodeCheck(job)
    check.start()
    _start_ray(attempt, job, check)
    check.wait()
    if attempt.stop.read() is not None:
        raise RunStopped("Stopped before the workers started.", checkpointed=False)
    _trainer(attempt, ref, job, job_yaml).fit()


def _start_ray(attempt: Attempt, job: Job, check: _CodeCheck) -> None:
    import ray

    started = time.monotonic()
    world_size = claim_of(attempt).world_size
    if address := own_head():
        connect_to_own(attempt, address, job.slurm.nodes_wait_s)
    elif in_a_pod():
        address = os.environ["RAY_ADDRESS"]
        connect_to_pods(attempt, address, world_size, job.kubernetes.start_deadline_s)
    elif address := os.environ.get("RAY_ADDRESS"):
        _connect(address)
        _check_cluster(job, world_size, ray.cluster_resources(), address)
    else:
        if job.resources.gpus_per_worker:
            check.wait()  # torch is imported by then
            check_gpus(world_size, job.resources.gpus_per_worker)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine: gradients stay on it
        ray.init(
            address="local",
            num_cpus=max(1, round(world_size * job.resources.cpus_per_worker + 0.5)),
            num_gpus=world_size * job.resources.gpus_per_worker,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=os.environ[variables.RAY_DIR],
        )
    seconds = time.monotonic() - started
    EventLog(attempt.events).write("ray_started", seconds=seconds, address=address or "local")


def _connect(address: str) -> None:
    import ray

    try:
        ray.init(address=address, log_to_driver=False)
    except (ConnectionError, OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise ClusterError(
            f"RAY_ADDRESS={address}: {str(error).splitlines()[0]}\n"
            "Start that cluster, name its token (RAY_AUTH_TOKEN_PATH), or unset RAY_ADDRESS."
        ) from error


def _check_cluster(job: Job, world_size: int, has: dict[str, float], address: str) -> None:
    for kind, each in (("CPU", job.resources.cpus_per_worker), ("GPU", job.resources.gpus_per_worker)):
        if world_size * each > has.get(kind, 0):
            raise ClusterError(
                f"{world_size} workers × {each:g} {kind} = {world_size * each:g} {kind}s, "
                f"and the Ray cluster at {address} has {has.get(kind, 0):g}.\n"
                f"Set resources.workers or {kind.lower()}s_per_worker lower, or add nodes."
            )


def _trainer(attempt: Attempt, ref: AttemptRef, job: Job, job_yaml: str) -> Any:
    from datetime import timedelta

    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.config import LoggingConfig

    from clustertrain.driver.backend import KitTorchConfig
    from clustertrain.driver.retry_policy import FailureWatch
    from clustertrain.driver.trainer import KitTrainer
    from clustertrain.worker import train as worker

    watch = job.failures.watchdog
    longest_s = max(watch.first_step_s, watch.step_s, watch.evaluation_s, watch.save_s)
    resources = {"CPU": job.resources.cpus_per_worker, "GPU": float(job.resources.gpus_per_worker)}
    if job.resources.memory_per_worker_bytes:
        resources["memory"] = float(job.resources.memory_per_worker_bytes)
    if own_head() or in_a_pod():
        resources[WORKER_SLOT] = 1.0
    return KitTrainer(
        worker.train,
        train_loop_config={},
        torch_config=KitTorchConfig(
            ref=ref,
            job_yaml=job_yaml,
            is_script=job.script is not None,
            # The watchdog speaks first, and names the phase; this one is for the case that it cannot.
            timeout_s=int(timedelta(seconds=longest_s + 60).total_seconds()),
        ),
        scaling_config=ScalingConfig(
            num_workers=claim_of(attempt).world_size,
            use_gpu=job.resources.gpus_per_worker > 0,
            resources_per_worker={key: value for key, value in resources.items() if value},
            placement_strategy="PACK",
        ),
        run_config=RunConfig(
            name="ray",
            storage_path=str(attempt.path),
            checkpoint_config=CheckpointConfig(
                num_to_keep=1
            ),  # unused: checkpoints are ours, see checkpoints/
            # Without end: FailureWatch counts, and what it counts are failures without a new checkpoint.
            failure_config=FailureConfig(
                max_failures=-1, controller_failure_limit=-1, max_preemption_failures=-1
            ),
            callbacks=[
                FailureWatch(
                    ref, job.failures.retries, job.kubernetes.start_deadline_s if in_a_pod() else None
                )
            ],
            logging_config=LoggingConfig(log_level="INFO"),
        ),
    )


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    if os.environ.get("RAY_ADDRESS"):
        import ray

        ray.shutdown()  # a cluster that is not ours gets its resources back at once
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
