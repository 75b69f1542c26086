"""Ray's private API: the one file that names it. Any release of Ray may change it.

There are two lists: what a run needs to be safe, correct, or within its limits, and what saves seconds. What
saves nothing that can be measured is not here: benchmarks/ray_names.py measures each name of the second list.
A run with a Ray that lacks a name fails with the name; tests/driver/test_ray_internals.py has what would
change without an error.

A name is looked up when it is imported, because the start of a node must not load Ray Train.
"""

from __future__ import annotations

import os
import signal
from importlib import import_module, metadata
from typing import Any

from clustertrain.errors import ClusterTrainError

ERROR_LOGGER = "ray.train.v2._internal.util"
"""Where Ray Train logs the exception of the train function, in a worker: it would be in the log twice."""

_CONSTANTS = "ray._private.ray_constants"
_EXECUTION = "ray.train.v2._internal.execution"
_NEEDED = {
    # A node that starts slowly would fail after 30 s, or its raylet after 15 s, whatever the job allows.
    "Node": "ray._private.node",
    "RayParams": "ray._private.parameter",
    "get_node": "ray._private.services",
    "DASHBOARD_AGENT_LISTEN_PORT_NAME": "ray._raylet",
    "METRICS_AGENT_PORT_NAME": "ray._raylet",
    "RUNTIME_ENV_AGENT_PORT_NAME": "ray._raylet",
    "get_port_filename": "ray._raylet",
    "persist_port": "ray._raylet",
    # A node that is up before its head would fail, and a raylet that hangs would be noticed after minutes.
    "GcsClient": "ray._raylet",
    "GcsNodeInfo": "ray.core.generated.gcs_pb2",
    # A group would get workers for which there is no room.
    "available_resources_per_node": "ray._private.state",
    # The controller would be an actor, through which errors and decisions have to pass, and the cleaner works
    # for an actor only.
    "TrainController": f"{_EXECUTION}.controller",
    "PlacementGroupCleanerCallback": "ray.train.v2._internal.callbacks.placement_group_callback",
    # Ranks would have the order of Ray's placement, a start that hangs no end, and a failure no cause.
    "WorkerGroup": f"{_EXECUTION}.worker_group",
    # A start that may succeed later would end the run.
    "RETRYABLE_CONTROLLER_ERRORS": f"{_EXECUTION}.failure_handling.default",
}
_SECONDS = {
    # A worker process would import Ray, torch and Ray Train: it is a fork instead.
    "Language": "ray.core.generated.common_pb2",
    "RuntimeEnvContext": "ray._private.runtime_env.context",
    "parser": "ray._private.workers.setup_worker",
    "update_envs": "ray._private.utils",
    # A process would start before the workers.
    "DatasetsCallback": "ray.train.v2._internal.callbacks.datasets",
}
_MODULES = _NEEDED | _SECONDS


def __getattr__(name: str) -> Any:
    """Return a name of Ray's private API from the module that has it.

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
    """Return the versions of Ray that this version was tested with, such as ray<2.61,>=2.59."""
    required = metadata.requires("clustertrain") or ()
    ray = next(each for each in required if each.startswith("ray["))
    return ray.partition(";")[0].replace("[train]", "").strip()


def _module(name: str) -> Any:
    """Import a module of Ray whose attributes may be set."""
    return import_module(name)


def keep_loopback() -> None:
    """Have Ray keep a loopback address. It would replace it by the external one, on which nothing listens."""
    _module(_CONSTANTS).ENABLE_RAY_CLUSTER = False


def make_nodes_with(node: Any) -> None:
    """Have `ray start` call this in place of Node; it has no parameter for that."""
    _module("ray._private.node").Node = node


def be_no_actor() -> None:
    """Have this process pass no handle of Ray Train's controller to the workers.

    This process is not an actor, and Ray would refuse to look for one. Only
    ray.train.get_all_reported_checkpoints() uses the handle.
    """
    _module("ray.runtime_context").RuntimeContext.current_actor = None


def draw_class_ids_from_system() -> None:
    """Have the decorator of actor classes draw their ids from the system.

    It would draw them from a generator in C++ whose forks all draw the same: workers that start together
    would give their objects one id.
    """
    actor = _module("ray.actor")
    kind = actor.ActorClassID

    class FromSystem(kind):  # type: ignore[misc, valid-type]  # ray ships no types
        @classmethod
        def from_random(cls) -> Any:
            return kind(os.urandom(kind.size()))

    actor.ActorClassID = FromSystem


def end_by_sigterm() -> None:
    """Have SIGTERM end this process as SIGKILL does.

    `ray.init` sets a handler that raises SystemExit, which would count as an error.
    """
    default = signal.SIG_DFL
    _module("ray._private.utils").set_sigterm_handler = lambda _: signal.signal(signal.SIGTERM, default)
