"""No job file renders docker/: what its files repeat of the kit, the Makefile and each other is compared
here, without a container. test_compose.py and test_image.py use real ones.
"""

import re

import pytest
import yaml

from clusters.containers import ROOT
from clustertrain.job.file import load_job
from clustertrain.launchers.kubernetes.keys.pod_sections import RunAs
from clustertrain.node.ray_settings import OBJECT_STORE_BYTES, RAY_ENVIRONMENT

DOCKERFILE, COMPOSE_FILE, SCRIPT, MAKEFILE, DOCS = (
    (ROOT / name).read_text()
    for name in (
        "docker/Dockerfile",
        "docker/compose.yaml",
        "docker/compose.sh",
        "Makefile",
        "docs/guides/images.md",
    )
)
SERVICES = yaml.safe_load(COMPOSE_FILE)["services"]
WORKERS = [name for name in SERVICES if name.startswith("worker-")]
ENVIRONMENT = SERVICES["head"]["environment"]


def command(service):
    return "\n".join(SERVICES[service]["command"])


def only(pattern, text):
    """The one value that the pattern finds, however often."""
    (found,) = set(re.findall(pattern, text))
    return found


def test_the_image_is_the_one_that_make_builds():
    built = only(
        r"^IMAGE \?= (\S+)$", "\n".join(line for line in MAKEFILE.splitlines() if "IMAGE ?=" in line)
    )
    assert {SERVICES[name]["image"] for name in ("head", *WORKERS, "tensorboard")} == {f"${{IMAGE:-{built}}}"}
    assert f"FROM {built}\n" in DOCS
    assert set(re.findall(r"localhost/clustertrain[\w:.-]*", DOCS)) == {built}


def test_the_s3_server_is_the_one_that_the_tests_build():
    assert only(r"versitygw/cmd/versitygw@(v[\d.]+)", MAKEFILE) == only(r"versitygw:(v[\d.]+)", COMPOSE_FILE)


@pytest.mark.parametrize("service", ["head", *WORKERS])
def test_ray_has_the_kit_s_object_store_and_sends_no_statistics(service):
    assert int(only(r"--object-store-memory=(\d+)", command(service))) == OBJECT_STORE_BYTES
    assert SERVICES[service]["shm_size"] == only(r"--shm-size (\S+)", DOCS)
    assert int(SERVICES[service]["shm_size"].removesuffix("m")) * 2**20 > OBJECT_STORE_BYTES
    name = "RAY_USAGE_STATS_ENABLED"
    assert f"{name}={RAY_ENVIRONMENT[name]}" in DOCKERFILE


def test_the_addresses_are_those_of_the_services_and_of_their_ports():
    host, port = ENVIRONMENT["RAY_ADDRESS"].split(":")
    assert (SERVICES[host]["hostname"], only(r"--port=(\d+)", command(host))) == (host, port)
    for worker in WORKERS:
        assert f"--address={host}:{port} " in command(worker)
        assert f"/dev/tcp/{host}/{port}" in command(worker)
    server, port = only(r"http://(\w+):(\d+)", ENVIRONMENT["AWS_ENDPOINT_URL"])
    assert (SERVICES[server]["hostname"], only(r"--port :(\d+)", command(server))) == (server, port)
    shown = only(r"http://127.0.0.1:\$?\{?[A-Z_:-]*(\d+)", SCRIPT)
    assert SERVICES["tensorboard"]["ports"] == [f"127.0.0.1:${{TENSORBOARD_PORT:-{shown}}}:{shown}"]
    assert f"--port={shown}" in SERVICES["tensorboard"]["command"]
    assert f"http://127.0.0.1:{shown}" in DOCS


def test_the_secrets_are_where_the_programs_look_for_them():
    folder = only(r"cd (/\S+)\n", command("head"))
    assert ENVIRONMENT["RAY_AUTH_TOKEN_PATH"] == f"{folder}/token"
    assert ENVIRONMENT["AWS_SHARED_CREDENTIALS_FILE"] == f"{folder}/s3"
    for name in ("head", *WORKERS, "s3"):
        assert any(each.startswith(f"secrets:{folder}") for each in SERVICES[name]["volumes"])
        assert f"{folder}/token" in command(name) or name == "head"
    assert f"{folder}/s3" in command("s3")
    key = only(r"aws_access_key_id = (\w+)", command("head"))
    assert f"ROOT_ACCESS_KEY={key}" in command("s3")


def test_the_folders_belong_to_the_user_of_the_image_who_is_that_of_the_pods():
    user = f"{RunAs().user}:{RunAs().group}"
    assert f"USER {user}\n" in DOCKERFILE
    assert SERVICES["s3"]["user"] == user
    made = only(rf"install -d -o {RunAs().user} -g {RunAs().group} (.*)", DOCKERFILE).split()
    mounted = {
        each.split(":")[-2 if each.endswith(":ro") else -1] for name in SERVICES for each in volumes(name)
    }
    assert mounted <= {*made}


def volumes(service):
    return [re.sub(r"\$\{[^}]*\}", "project", each) for each in SERVICES[service]["volumes"]]


def test_the_run_that_is_shown_fits_into_the_cluster_that_is_waited_for():
    job = load_job(ROOT / only(r"clustertrain run (\S+)", SCRIPT))
    assert only(r"clustertrain run (\S+)", COMPOSE_FILE) == only(r"clustertrain run (\S+)", SCRIPT)
    cpus = [int(only(r"--num-cpus=(\d+)", command(name))) for name in WORKERS]
    assert job.resources.max_workers * job.resources.cpus_per_worker <= sum(cpus)
    assert int(only(r"num-cpus=(\d+)", command("head"))) == 0
    assert int(only(r"ray\.nodes\(\)\) < (\d+)", SCRIPT)) == 1 + len(WORKERS)
    logs = only(r"--logdir=(\S+)", command("tensorboard"))
    assert f"--set storage={logs}" in SCRIPT


def test_the_labels_are_those_of_the_page():
    given = set(re.findall(r"(io\.clustertrain\.\w+)=", DOCKERFILE))
    assert given == set(re.findall(r"io\.clustertrain\.\w+", DOCS))
