"""Ray's settings on every platform: its environment, its object store, and the resource of a worker."""

from __future__ import annotations

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage statistics are sent
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # a dead worker is noticed 1.8 s sooner
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "600",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": "1800",  # for ray.train.collective in user code; default: none
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # it costs two actors, each with its own process
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # it prints everything twice
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # the working directory is the job's code
    # Each health check is a task. Ray would keep a record of the last 100,000, in 0.35 GB of the GCS.
    "RAY_task_events_report_interval_ms": "0",
    "RAY_prestart_worker_first_driver": "0",  # no actor of Ray Train would use these processes
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # the save is before SIGTERM: nothing to wait 30 s for
}
NCCL_HANG_DETECTOR = "RAY_TRAIN_ENABLE_NCCL_HANG_DETECTOR"
"""For jobs with GPUs: the log of the driver names the communicators of NCCL whose ranks have stopped in
different collectives. It needs NCCL 2.28 and its program ncclras on the workers, or is off after one warning.
It only observes: `RAY_TRAIN_NCCL_RAS_ACTION=fail` would also end a healthy run in which one rank computes
for ten minutes, or whose node another run shares, because ncclras asks port 28028 of the node."""
FAST_RESTART = {
    "RAY_gcs_create_placement_group_retry_min_interval_ms": "10",
    "RAY_gcs_create_placement_group_retry_max_interval_ms": "50",
    "RAY_raylet_report_resources_period_milliseconds": "10",
    "RAY_worker_maximum_startup_concurrency": "64",  # Ray's limit is the CPUs; here a start is a fork
}
"""For Ray's own processes. With its defaults a restart waits up to 0.5 s until the GCS knows that the CPUs of
a dead rank are free."""
OBJECT_STORE_BYTES = 128 * 2**20  # data and checkpoints are files, so only small objects pass through it
WORKER_SLOT = "clustertrain_worker"
"""A Ray resource: each node has one unit for each of its workers. Without it, and with fractions of CPUs, Ray
could place more workers on a node than intended."""
