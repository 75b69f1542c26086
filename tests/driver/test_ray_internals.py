"""What is relied on of Ray's private API, a test for each name: the failures of a new Ray name what broke."""

import inspect
import os
import re
import signal
import sys
from importlib import import_module
from pathlib import Path

import pytest
import ray
from ray.train.torch import TorchTrainer

from clustertrain.driver import ray_internals
from clustertrain.driver.ray_internals import _module
from clustertrain.errors import ClusterTrainError

PORT_NAMES = (
    "DASHBOARD_AGENT_LISTEN_PORT_NAME",
    "METRICS_AGENT_PORT_NAME",
    "RUNTIME_ENV_AGENT_PORT_NAME",
)
CALLBACKS = ("DatasetsCallback", "PlacementGroupCleanerCallback")
_PRIVATE = re.compile(r"\bray\.(?:\w+\.)*_[a-z]\w*|\bray\.core\.generated")


def parameters(function):
    return set(inspect.signature(function).parameters)


def missing(cls, *members):
    return [name for name in members if not hasattr(cls, name)]


def test_every_name_has_a_test():
    tests = {name for name in globals() if name.startswith("test_")}
    of_names = {f"test_{name}" for name in ray_internals._MODULES.keys() - {*PORT_NAMES, *CALLBACKS}}
    assert of_names <= tests, sorted(of_names - tests)


def test_no_other_file_names_the_private_api():
    src = Path(ray_internals.__file__).parents[1]
    files = {path.name: path.read_text() for path in src.rglob("*.py")}
    assert {name for name, text in files.items() if _PRIVATE.search(text)} == {"ray_internals.py"}


def test_a_name_that_this_ray_lacks_is_named_with_the_tested_versions(monkeypatch):
    monkeypatch.setitem(ray_internals._MODULES, "Node", "ray._private.no_such_module")
    text = r"has no ray\._private\.no_such_module\.Node; .* ray<2\..*\nInstall that Ray"
    with pytest.raises(ClusterTrainError, match=text):
        _ = ray_internals.Node


# -- the processes of a node -------------------------------------------------------------------------------


def test_Node():  # noqa: N802
    """It starts its processes in one method, which calls one method for each that a run does not use."""
    cls = ray_internals.Node
    assert list(inspect.signature(cls.__init__).parameters)[1:3] == ["ray_params", "head"]
    assert parameters(cls.start_ray_processes) == {"self"}
    assert not missing(cls, "start_api_server", "start_monitor", "start_log_monitor", "dead_processes")
    assert not missing(cls, "get_gcs_client", "gcs_address", "node_id", "address")
    assert not missing(cls, "get_session_dir_path", "get_logs_dir_path")
    assert "check_alive" in parameters(cls.kill_all_processes)
    text = inspect.getsource(cls)
    assert all(f"self.{name} = " in text for name in ("_ray_params", "_session_dir", "_logs_dir", "head"))
    assert "self.all_processes: dict = " in text


def test_RayParams():  # noqa: N802
    """It has these fields, as attributes that can be set; a port that nobody chose is not set."""
    given = ray_internals.RayParams(num_cpus=1, node_name="a", temp_dir="/t", no_monitor=True)
    fields = ("metrics_export_port", "dashboard_agent_listen_port", "min_worker_port", "gcs_address")
    assert not missing(given, *fields)
    assert (given.num_cpus, given.metrics_agent_port, given.gcs_server_port) == (1, None, None)
    assert given.runtime_env_agent_port is None


def test_get_node():
    """It has these parameters; before a node has registered it raises RuntimeError."""
    assert list(inspect.signature(ray_internals.get_node).parameters) == ["gcs_address", "node_id"]
    assert callable(_module("ray._raylet").GlobalStateAccessor.get_node)


def test_get_port_filename():
    """The files of two nodes, which may share a session, differ."""
    names = {ray_internals.get_port_filename(node * 56, "p") for node in "ab"}
    assert len(names) == 2


@pytest.mark.parametrize("name", PORT_NAMES)
def test_persist_port(tmp_path, name):
    """The file of an agent's port has the number alone."""
    port_name = getattr(ray_internals, name)
    ray_internals.persist_port(str(tmp_path), "a" * 56, port_name, 4321)
    assert int((tmp_path / ray_internals.get_port_filename("a" * 56, port_name)).read_text()) == 4321


# -- a worker process --------------------------------------------------------------------------------------


def test_parser():
    """setup_worker.py parses the arguments that are not the worker's; the worker's program is beside it."""
    arguments = [
        "default_worker.py",
        "--worker-id=1",
        "--language=PYTHON",
        "--serialized-runtime-env-context={}",
    ]
    parsed, remaining = ray_internals.parser.parse_known_args(arguments)
    assert (parsed.language, parsed.serialized_runtime_env_context) == ("PYTHON", "{}")
    assert remaining == ["default_worker.py", "--worker-id=1"]
    folder = Path(ray.__file__).parent / "_private/workers"
    assert {"default_worker.py", "setup_worker.py"} <= {path.name for path in folder.iterdir()}


def test_RuntimeEnvContext():  # noqa: N802
    """The context of a worker as JSON; `exec_worker` replaces the process by the worker."""
    context = ray_internals.RuntimeEnvContext.deserialize('{"env_vars": {"A": "1"}}')
    assert (context.env_vars, context.command_prefix, context.py_executable) == (
        {"A": "1"},
        [],
        sys.executable,
    )
    assert parameters(context.exec_worker) == {"passthrough_args", "language"}


def test_Language():  # noqa: N802
    assert ray_internals.Language.Value("PYTHON") == 0


def test_update_envs(monkeypatch):
    """It sets variables of this process; a ${NAME} in a value is replaced."""
    monkeypatch.setenv("CT_A", "1")
    monkeypatch.setenv("CT_B", "")
    ray_internals.update_envs({"CT_B": "${CT_A}:2"})
    assert os.environ["CT_B"] == "1:2"


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


# -- the cluster -------------------------------------------------------------------------------------------


def test_GcsClient():  # noqa: N802
    """It passes the question for the nodes on to a client that has it."""
    assert callable(ray_internals.GcsClient.__getattr__)
    assert callable(_module("ray._raylet").InnerGcsClient.get_all_node_info)


def test_GcsNodeInfo():  # noqa: N802
    """It has a state for a node that the GCS has given up."""
    assert ray_internals.GcsNodeInfo.DEAD != ray_internals.GcsNodeInfo.ALIVE


def test_available_resources_per_node():
    """It needs no arguments, and its keys are the ids of nodes in hex."""
    assert parameters(ray_internals.available_resources_per_node) == set()
    state = import_module("ray._private.state")
    assert "binary_to_hex" in inspect.getsource(state.GlobalState.available_resources_per_node)


# -- Ray Train ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLBACKS)
def test_the_default_callbacks(name):
    """One method of the trainer makes them."""
    assert getattr(ray_internals, name).__name__ == name
    assert f"{name}(" in inspect.getsource(TorchTrainer._create_default_callbacks)


def test_TrainController():  # noqa: N802
    """It makes its group with a class attribute; `run` is a coroutine that `get_result` follows."""
    cls = ray_internals.TrainController
    assert issubclass(cls.worker_group_cls, ray_internals.WorkerGroup)
    assert inspect.iscoroutinefunction(cls.run)
    assert parameters(cls.get_result) == {"self"}
    assert "self.worker_group_cls.create(" in inspect.getsource(cls)


def test_WorkerGroup():  # noqa: N802
    """It assigns the ranks where it makes the workers."""
    cls = ray_internals.WorkerGroup
    assert [*inspect.signature(cls._create_workers).parameters][1:3] == ["num_workers", "placement_group"]
    assert "replica_group_size" in parameters(cls._create_workers)
    assert len(parameters(cls._assign_worker_ranks)) >= 1
    assert parameters(cls.poll_status) == {"self", "timeout"}
    assert "self._train_run_context = train_run_context" in inspect.getsource(cls)
    assert not missing(cls, "get_workers", "has_started", "abort")


def test_RETRYABLE_CONTROLLER_ERRORS():  # noqa: N802
    """Its errors of a start that may succeed later."""
    names = {error.__name__ for error in ray_internals.RETRYABLE_CONTROLLER_ERRORS}
    assert names == {"WorkerGroupStartupFailedError", "WorkerGroupStartupTimeoutError"}


# -- what is set, or read, in a module of Ray --------------------------------------------------------------


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


def test_make_nodes_with(monkeypatch):
    """It takes the class from its module when it starts a node."""
    monkeypatch.setattr("ray._private.node.Node", None)
    ray_internals.make_nodes_with(dict)
    assert _module("ray._private.node").Node is dict
    assert "ray._private.node.Node(" in inspect.getsource(import_module("ray.scripts.scripts"))


def test_end_by_sigterm(monkeypatch):
    """`ray.init` takes the function from its module, and calls it."""
    utils = _module("ray._private.utils")
    monkeypatch.setattr(utils, "set_sigterm_handler", utils.set_sigterm_handler)
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray_internals.end_by_sigterm()
        utils.set_sigterm_handler(lambda number, frame: None)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "ray._private.utils.set_sigterm_handler(" in inspect.getsource(
        import_module("ray._private.worker")
    )
