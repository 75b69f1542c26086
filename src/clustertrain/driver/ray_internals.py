"""Ray's private API: the one file that names it. Any release of Ray may change it.

tests/driver/test_ray_internals.py states for each name what is relied on, so that a new Ray shows what broke.

A name is looked up when it is imported, because the start of a node must not load Ray Train.
"""

from __future__ import annotations

import math
import os
import signal
from importlib import import_module, metadata
from typing import Any

from clustertrain.errors import ClusterTrainError

ERROR_LOGGER = "ray.train.v2._internal.util"
"""Where Ray Train logs the exception of the train function, in a worker."""

_CONSTANTS = "ray._private.ray_constants"
_EXECUTION = "ray.train.v2._internal.execution"
_MODULES = {
    # the processes of a node
    "Node": "ray._private.node",
    "RayParams": "ray._private.parameter",
    "get_node": "ray._private.services",
    "DASHBOARD_AGENT_LISTEN_PORT_NAME": "ray._raylet",
    "METRICS_AGENT_PORT_NAME": "ray._raylet",
    "RUNTIME_ENV_AGENT_PORT_NAME": "ray._raylet",
    "get_port_filename": "ray._raylet",
    "persist_port": "ray._raylet",
    # a worker process
    "Language": "ray.core.generated.common_pb2",
    "RuntimeEnvContext": "ray._private.runtime_env.context",
    "parser": "ray._private.workers.setup_worker",
    "update_envs": "ray._private.utils",
    # the cluster
    "GcsClient": "ray._raylet",
    "GcsNodeInfo": "ray.core.generated.gcs_pb2",
    "available_resources_per_node": "ray._private.state",
    "WORKER_PROCESS_SETUP_HOOK_ENV_VAR": _CONSTANTS,
    # Ray Train
    "DatasetsCallback": "ray.train.v2._internal.callbacks.datasets",
    "PlacementGroupCleanerCallback": "ray.train.v2._internal.callbacks.placement_group_callback",
    "FixedScalingPolicy": f"{_EXECUTION}.scaling_policy",
    "TrainController": f"{_EXECUTION}.controller",
    "WorkerGroup": f"{_EXECUTION}.worker_group",
    "RETRYABLE_CONTROLLER_ERRORS": f"{_EXECUTION}.failure_handling.default",
}


def __getattr__(name: str) -> Any:
    """
    Raises:
        ClusterTrainError: this Ray does not have the name.
    """
    if name not in _MODULES:
        raise AttributeError(f"{name} is not listed in {__file__}")
    try:
        return getattr(import_module(_MODULES[name]), name)
    except (ImportError, AttributeError) as error:
        import ray

        raise ClusterTrainError(
            f"Ray {ray.__version__} has no {_MODULES[name]}.{name}; clustertrain is tested with {tested()}.\n"
            "Install that Ray."
        ) from error


def tested() -> str:
    """The versions of Ray that this version was tested with, such as ray<2.61,>=2.59."""
    required = metadata.requires("clustertrain") or ()
    ray = next(each for each in required if each.startswith("ray["))
    return ray.partition(";")[0].replace("[train]", "").strip()


def _module(name: str) -> Any:
    """A module of Ray whose attributes may be set."""
    return import_module(name)


def keep_loopback() -> None:
    """Have Ray keep a loopback address. It would replace it by the external one, on which nothing listens."""
    _module(_CONSTANTS).ENABLE_RAY_CLUSTER = False


def wait_for_gcs(seconds: float) -> None:
    """Have a node try to reach the GCS for so long."""
    _module(_CONSTANTS).NUM_REDIS_GET_RETRIES = math.ceil(seconds)  # one try per second


def wait_for_dashboard(seconds: float) -> None:
    """Have a node wait so long for the dashboard's server."""
    _module(_CONSTANTS).RAY_DASHBOARD_STARTUP_TIMEOUT_S = math.ceil(seconds)


def make_nodes_with(node: Any) -> None:
    """Have `ray start` call this in place of Node; it has no parameter for that."""
    _module("ray._private.node").Node = node


def be_actor(handle: Any) -> None:
    """Have this process pass `handle` to the workers as that of Ray Train's controller, which is no actor."""
    _module("ray.runtime_context").RuntimeContext.current_actor = handle


def draw_class_ids_from_system() -> None:
    """Have the decorator of actor classes draw their ids from the system. It would draw them from a generator
    in C++ whose forks all draw the same: workers that start together would give their objects one id."""
    actor = _module("ray.actor")
    kind = actor.ActorClassID

    class FromSystem(kind):  # type: ignore[misc, valid-type]  # ray ships no types
        @classmethod
        def from_random(cls) -> Any:
            return kind(os.urandom(kind.size()))

    actor.ActorClassID = FromSystem


def end_by_sigterm() -> None:
    """Have SIGTERM end this process as SIGKILL does. `ray.init` sets a handler that raises SystemExit, which
    would count as an error."""
    default = signal.SIG_DFL
    _module("ray._private.utils").set_sigterm_handler = lambda _: signal.signal(signal.SIGTERM, default)
