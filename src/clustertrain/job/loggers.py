"""The variables and the servers of the loggers in `train.log`."""

from __future__ import annotations

from urllib.parse import urlsplit

from clustertrain.job.model import Job

MLFLOW_URI = "MLFLOW_TRACKING_URI"
WANDB_URL, WANDB_MODE, WANDB_DIR = "WANDB_BASE_URL", "WANDB_MODE", "WANDB_DIR"
_WANDB_CLOUD = "https://api.wandb.ai"
DEFAULT_LOGGERS = ("tensorboard",)
"""Those of a function with its own loop."""


def loggers_of(job: Job) -> tuple[str, ...]:
    """Return the loggers by name: the value of `train.log`, or the default ones without a section `train`.

    A function has no section `train`; a script writes no metrics.
    """
    return job.train.log if job.train is not None else DEFAULT_LOGGERS


def is_offline(mode: str | None) -> bool:
    """Return whether W&B writes files only, by the value of WANDB_MODE."""
    return mode in ("offline", "dryrun")


def server_urls(job: Job) -> list[str]:
    """Return the servers on HTTP that the loggers of a job use, as far as the job shows them."""
    urls, loggers = [], loggers_of(job)
    if "mlflow" in loggers:
        urls.append(job.env.get(MLFLOW_URI, ""))
    if "wandb" in loggers and job.env.get(WANDB_MODE) in (None, "online", "shared"):
        urls.append(job.env.get(WANDB_URL, _WANDB_CLOUD))
    return [url for url in urls if _is_server(url)]


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the address or the port is wrong
        return False
