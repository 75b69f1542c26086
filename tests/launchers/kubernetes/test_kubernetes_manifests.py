"""What is rendered for Kubernetes: pods that are restricted, paths that they see, goldens as they are."""

import base64
import io
import random
import shutil
import tarfile
from dataclasses import fields, replace
from pathlib import Path

import pytest
from ray._common.utils import load_class

from clustertrain.errors import JobError, StorageError
from clustertrain.job.file import load_job, parse_job
from clustertrain.launchers.kubernetes.in_pod import entrypoint as in_pod
from clustertrain.launchers.kubernetes.render.manifests import MOST_CODE_BYTES, manifests, to_yaml
from clustertrain.launchers.kubernetes.render.paths import PodJob
from clustertrain.node.version import RAY_VERSION
from clustertrain.run_files.admission import Options
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.records.provenance import CodeSource, Repository
from clustertrain.storage.record_file import decoded
from launchers.kubernetes.rendered_jobs import containers, group_of, of_kind, pods, spec_of

CHECKOUT = Path(__file__).parents[3]


def config_of(*job_and_options):
    (config,) = of_kind(manifests(*job_and_options), "ConfigMap")
    return config


def test_every_pod_keeps_to_the_restricted_standard(make_job):
    for pod in pods(make_job()).values():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(pod):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_the_rayjob_ends_restarts_and_locks_its_doors(make_job):
    job = make_job(failures={"grace": "45s"}, kubernetes={"ttl": "5m", "start_deadline": "10m"})
    spec = spec_of(job)
    assert spec["shutdownAfterJobFinishes"] is True
    assert (spec["ttlSecondsAfterFinished"], spec["preRunningDeadlineSeconds"]) == (0, 600)
    assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    assert spec["rayClusterSpec"]["rayVersion"] == RAY_VERSION
    specs = [pods(job)[role]["spec"] for role in ("head", "worker")]
    graces = [spec["terminationGracePeriodSeconds"] for spec in specs]
    assert graces == [300, 75], "the head's pod stays for the ttl, and the workers' pods go at once"
    boxes = [spec["containers"][0] for spec in specs]
    assert boxes[0]["lifecycle"]["preStop"]["exec"]["command"][-1] == "head"
    environments = [{each["name"]: each.get("value") for each in box["env"]} for box in boxes]
    assert environments[0]["RAY_JOB_STOP_WAIT_TIME_S"] == "65"
    assert environments[0]["RAY_DASHBOARD_STARTUP_TIMEOUT_S"] == "600", "kubernetes.start_deadline"
    for environment in environments:
        assert environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "0"
        assert callable(load_class(environment["RAY_START_HOOK"]))
        assert environment["PYTHONHASHSEED"] == "0", "of the fork server and of Ray, before a worker exists"


def test_the_one_version_of_ray_is_that_of_the_constraints():
    assert f"\nray=={RAY_VERSION} " in (CHECKOUT / "requirements/constraints.txt").read_text()


def test_code_and_the_data_below_it_travel(make_job, tmp_path):
    (tmp_path / "set.csv").write_text("1,2\n")
    job = make_job(data={"set": {"uri": "set.csv"}})
    config = config_of(job)
    assert config["immutable"] is True
    inside = parse_job(config["data"]["job.yaml"], "job.yaml")
    packed = base64.b64decode(config["binaryData"]["code.tar.gz"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert {"m.py", "set.csv", "job.yaml"} <= set(archive.getnames())
    assert inside.data["set"].uri == f"{inside.code[0]}/set.csv"
    assert inside.storage.uri == "/mnt/clustertrain/runs"
    name = config["metadata"]["name"]
    (tmp_path / "m.py").write_text("x = 2\n")
    assert config_of(job)["metadata"]["name"] != name


def test_the_name_does_not_depend_on_where_the_folder_lies(make_job, tmp_path):
    first = config_of(make_job())
    shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-moved")
    moved = load_job(tmp_path.parent / f"{tmp_path.name}-moved" / "job.yaml")
    assert config_of(moved) == first


def test_code_in_the_image_does_not_travel(make_job):
    job = make_job(kubernetes={"code_in_image": "/app"}, data={"set": {"uri": "set.csv"}})
    config = config_of(job)
    assert "binaryData" not in config
    assert parse_job(config["data"]["job.yaml"], "job.yaml").data["set"].uri == "/app/set.csv"
    assert all("initContainers" not in pod["spec"] for pod in pods(job).values())


def test_several_folders_of_code(make_job, tmp_path):
    (tmp_path / "lib").mkdir()
    beside = tmp_path.parent / f"{tmp_path.name}-beside"
    beside.mkdir()
    (beside / "m.py").write_text("x = 3\n")
    (beside / "set.csv").write_text("1,2\n")
    job = make_job(code=[".", "lib", str(beside)], data={"set": {"uri": str(beside / "set.csv")}})
    config = config_of(job)
    inside = parse_job(config["data"]["job.yaml"], "job.yaml")
    top = "/clustertrain/work/code"
    assert inside.code == (f"{top}/1", f"{top}/1/lib", f"{top}/3")
    assert inside.data["set"].uri == f"{top}/3/set.csv"
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(config["binaryData"]["code.tar.gz"]))) as archive:
        assert {"1/m.py", "1/lib", "3/m.py", "3/set.csv"} <= set(archive.getnames())
    environment = pods(job)["head"]["spec"]["containers"][0]["env"]
    assert {"name": "CLUSTERTRAIN_CODE", "value": ":".join(inside.code)} in environment
    in_image = make_job(code=[".", "lib"], kubernetes={"code_in_image": ["/app", "/lib"]})
    assert parse_job(config_of(in_image)["data"]["job.yaml"], "job.yaml").code == ("/app", "/lib")


def test_code_that_is_too_large_is_refused(make_job, tmp_path):
    (tmp_path / "noise.bin").write_bytes(random.Random(0).randbytes(MOST_CODE_BYTES + 1))
    with pytest.raises(StorageError, match=r"when packed, and a ConfigMap has room for 900,000"):
        manifests(make_job())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": None}, "image is missing"),
        ({"kubernetes": {"volumes": []}}, "is on no writable volume, and other files of a pod are deleted"),
        (
            {
                "storage": "/data/runs",
                "kubernetes": {
                    "volumes": [
                        {"mount": "/data", "claim": "d", "read_only": True},
                        {"mount": "/mnt", "claim": "r"},
                    ]
                },
            },
            "storage: /data/runs is on no writable volume",
        ),
        ({"data": {"d": {"uri": "/srv/set.csv"}}}, "is a path on this machine, which no pod can read"),
    ],
)
def test_what_no_pod_can_see_is_refused(make_job, changes, message):
    with pytest.raises(JobError, match=message):
        manifests(make_job(**changes))


def test_storage_on_a_volume_and_on_s3_stay_as_they_are(make_job):
    read_only = {"mount": "/data", "claim": "d", "read_only": True}
    volume = {"volumes": [read_only, {"mount": "/data/runs", "claim": "r"}]}
    assert PodJob.of(make_job(storage="/data/runs/x", kubernetes=volume)).job.storage.uri == "/data/runs/x"
    assert PodJob.of(make_job(storage="s3://b/p")).job.storage.uri == "s3://b/p"


@pytest.mark.parametrize("storage", ["s3://b/p", {"uri": "s3://b/p", "region": "eu-west-1"}])
def test_storage_on_s3_needs_no_volume(make_job, storage):
    for kubernetes in ({}, {"namespace": "team"}):
        assert PodJob.of(make_job(storage=storage, kubernetes=kubernetes)).volumes == ()
    data = {"volumes": [{"mount": "/data", "claim": "d"}]}
    assert [each.claim for each in PodJob.of(make_job(storage=storage, kubernetes=data)).volumes] == ["d"]


def test_flows_to_s3_and_loggers_are_allowed_only_where_they_are_used(make_job):
    def outgoing(job):
        (policy,) = of_kind(manifests(job), "NetworkPolicy")
        return [rule["ports"] for rule in policy["spec"]["egress"] if "to" not in rule]

    assert outgoing(make_job()) == []
    s3 = make_job(storage={"uri": "s3://b/p", "endpoint": "http://minio:9000"})
    assert outgoing(s3) == [[{"protocol": "TCP", "port": 9000}]]
    for loggers, server, ports in (
        (["mlflow", "wandb"], "http://mlflow:5000", (443, 5000)),
        (["mlflow"], "HTTPS://[fd00::1]:5000", (5000,)),
        (["mlflow"], "http://mlflow?a=b", (80,)),
        (["mlflow"], "http://h:99999", ()),
    ):
        train = {"epochs": 1, "batch_size": 8, "log": loggers}
        found = outgoing(make_job(train=train, env={"MLFLOW_TRACKING_URI": server}))
        assert found == ([[{"protocol": "TCP", "port": port} for port in ports]] if ports else [])


def test_no_value_of_this_machine_is_in_the_objects(make_job, monkeypatch):
    monkeypatch.setenv("FROM_HERE", "canary-here")
    text = to_yaml(manifests(make_job(env={"A": "${FROM_HERE}"})))
    assert "A: ${FROM_HERE}" in text
    assert "canary" not in text


def test_workers_send_their_streams_up_only_where_storage_is_on_s3(make_job):
    def hooks(**sections):
        made = pods(make_job(**sections))
        return [sorted(made[role]["spec"]["containers"][0]["lifecycle"]) for role in ("head", "worker")]

    assert hooks() == [["preStop"], ["preStop"]]
    assert hooks(storage="s3://b/p") == [["preStop"], ["postStart", "preStop"]]


def test_the_priority_class_of_a_queue_is_a_label(make_job):
    queue = {"name": "q", "priority_class": "high"}
    rayjob = manifests(make_job(kubernetes={"queue": queue}))[-1]
    assert rayjob["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"


@pytest.mark.parametrize(
    "option",
    # `submit` checks the code, before there is a pod; only `run` can do without Ray.
    [
        field.name
        for field in fields(Options)
        if field.type == "bool" and field.name not in ("no_check", "no_ray")
    ],
)
def test_each_option_is_read_by_the_entrypoint_as_it_was_given(make_job, option):
    given = Options(**{option: True})
    job = make_job()
    *_, flag = spec_of(job, given)["entrypoint"].split()
    command = CommandLine("submit --to kubernetes", run=f"{job.storage.uri.rstrip('/')}/{job.name}")
    assert in_pod._options(job, [flag]) == replace(given, command=command)


def test_a_submission_carries_the_commit_and_a_diff_that_has_room(make_job):
    def carried(diff):
        source = CodeSource((Repository("project", "c0ffee", diff=diff),))
        config = config_of(make_job(), Options(source=source))
        (repository,) = decoded(
            CodeSource, config["data"]["source.json"].encode(), "source.json"
        ).repositories
        return repository

    assert (carried("+x = 2\n").commit, carried("+x = 2\n").diff) == ("c0ffee", "+x = 2\n")
    assert (carried("+" * 100_000).commit, carried("+" * 100_000).diff) == ("c0ffee", "")
    assert "no room" in carried("+" * 100_000).note
    assert "source.json" not in config_of(make_job())["data"]


@pytest.mark.parametrize(
    ("resources", "per_node", "replicas", "gpus"),
    [
        ({"workers": 8}, None, (8, 8), None),
        ({"workers": 1, "gpus_per_worker": 1}, None, (1, 1), "1"),
        ({"workers": 8, "gpus_per_worker": 1}, 8, (1, 1), "8"),
        ({"workers": 12, "gpus_per_worker": 1}, 8, (2, 2), "6"),
        ({"workers": [2, 8], "gpus_per_worker": 1}, 8, (1, 4), "2"),
        ({"workers": 8, "nodes": 4, "gpus_per_worker": 1}, 8, (4, 4), "2"),
    ],
)
def test_as_few_pods_as_the_nodes_allow(make_job, resources, per_node, replicas, gpus):
    group = group_of(make_job(resources=resources, kubernetes={"gpus_per_node": per_node}))
    assert (group["minReplicas"], group["replicas"]) == replicas
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu") == gpus


def test_slices_of_a_gpu_are_one_to_a_pod(make_job):
    section = {"gpu_resource": "nvidia.com/mig-1g.10gb"}
    job = make_job(resources={"workers": 8, "gpus_per_worker": 1}, kubernetes=section)
    assert group_of(job)["replicas"] == 8


@pytest.mark.parametrize(("section", "said"), [({}, "is not set"), ({"gpus_per_node": 1}, "is 1")])
def test_a_job_on_gpus_without_gpus_per_node_is_asked_for_its_nodes(make_job, section, said):
    with pytest.raises(JobError, match=rf"resources.nodes is missing.*gpus_per_node {said}") as caught:
        manifests(make_job(resources={"workers": 8, "gpus_per_worker": 2}, kubernetes=section))
    assert caught.value.at == ("resources", "workers")
    assert len(str(caught.value).splitlines()) == 3
