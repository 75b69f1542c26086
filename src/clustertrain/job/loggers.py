"""The variables and the servers of the loggers in `train.log`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

MLFLOW_URI = "MLFLOW_TRACKING_URI"
WANDB_URL, WANDB_MODE, WANDB_DIR = "WANDB_BASE_URL", "WANDB_MODE", "WANDB_DIR"
_WANDB_CLOUD = "https://api.wandb.ai"


def is_offline(mode: str | None) -> bool:
    """Return whether W&B writes files only, by the value of WANDB_MODE."""
    return mode in ("offline", "dryrun")


def server_urls(loggers: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the servers on HTTP that the loggers of a job use, as far as its `env` shows them."""
    urls = []
    if "mlflow" in loggers:
        urls.append(env.get(MLFLOW_URI, ""))
    if "wandb" in loggers and env.get(WANDB_MODE) in (None, "online", "shared"):
        urls.append(env.get(WANDB_URL, _WANDB_CLOUD))
    return [url for url in urls if _is_server(url)]


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the address or the port is wrong
        return False
