"""What is relied on of Ray's private API, and would change unnoticed.

A whole run with a Ray that lacks a name, or takes other arguments, fails with the name.
"""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
import ray

from clustertrain.driver import ray_internals
from clustertrain.errors import ClusterTrainError

_PRIVATE = re.compile(r"\bray\.(?:\w+\.)*_[a-z]\w*|\bray\.core\.generated")


def test_no_other_file_names_the_private_api():
    src = Path(ray_internals.__file__).parents[1]
    files = {path.name: path.read_text() for path in src.rglob("*.py")}
    assert {name for name, text in files.items() if _PRIVATE.search(text)} == {"ray_internals.py"}


def test_a_name_that_this_ray_lacks_is_named_with_the_tested_versions(monkeypatch):
    monkeypatch.setitem(ray_internals._MODULES, "Node", "ray._private.no_such_module")
    text = r"has no ray\._private\.no_such_module\.Node; .* ray<2\..*\nInstall that Ray"
    with pytest.raises(ClusterTrainError, match=text):
        _ = ray_internals.Node


def test_a_node_starts_its_dashboard_by_a_method():
    """The method is replaced; under another name the dashboard would start."""
    assert "self.start_api_server(" in inspect.getsource(ray_internals.Node)


def test_draw_class_ids_from_system(monkeypatch):
    """The decorator of actor classes draws an id from this name in its module."""
    monkeypatch.setattr("ray.actor.ActorClassID", ray.actor.ActorClassID)  # restored at the end
    assert inspect.getsource(ray.actor).count("ActorClassID.from_random()") == 1
    ray_internals.draw_class_ids_from_system()

    @ray.remote
    class Actor:
        pass

    found = Actor.__ray_metadata__.class_id
    assert found != ray.actor.ActorClassID.from_random()


def test_RETRYABLE_CONTROLLER_ERRORS():  # noqa: N802
    """Its errors of a start that may succeed later."""
    names = {error.__name__ for error in ray_internals.RETRYABLE_CONTROLLER_ERRORS}
    assert names == {"WorkerGroupStartupFailedError", "WorkerGroupStartupTimeoutError"}


def test_the_logger_of_errors():
    assert import_module(ray_internals.ERROR_LOGGER).logger.name == ray_internals.ERROR_LOGGER


def test_be_no_actor(monkeypatch):
    """A worker gets as the controller what this attribute has."""
    context = ray.runtime_context.RuntimeContext
    monkeypatch.setattr(context, "current_actor", context.current_actor)  # restored at the end
    ray_internals.be_no_actor()
    assert context(object()).current_actor is None
    made = inspect.getsource(ray_internals.WorkerGroup._init_train_context_on_workers)
    assert "controller_actor=ray.get_runtime_context().current_actor" in made


def test_keep_loopback(monkeypatch):
    services = import_module("ray._private.services")
    monkeypatch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", True)
    ray_internals.keep_loopback()
    assert services.resolve_ip_for_localhost("127.0.0.1") == "127.0.0.1"


def test_the_settings_for_a_node_that_starts_slowly():
    """Ray reads the one when it waits, and the other when it is imported."""
    node = inspect.getsource(ray_internals.Node)
    assert node.count('os.environ.get("RAY_gcs_server_port_wait_time_s"') == 2
    constants = inspect.getsource(import_module("ray._private.ray_constants"))
    assert 'env_integer("RAY_DASHBOARD_STARTUP_TIMEOUT_S"' in constants
