"""No job file renders docker/: what its files repeat of the kit, the Makefile and each other is compared
here, without a container. test_compose.py and test_image.py use real ones.
"""

import re

import pytest
import yaml

from clusters.containers import ROOT
from clustertrain.job.file import load_job
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
