"""The files of docker/, looked at without an image; test_compose.py and test_image.py use real ones."""

import re
import sys
from pathlib import Path

import pytest
import yaml

from clusters.containers import BASE, ROOT, make_image, project_image_of_the_docs
from clustertrain.job.file import load_job
from clustertrain.node.ray_settings import OBJECT_STORE_BYTES, RAY_ENVIRONMENT
from support.commands import ran

HADOLINT = Path(sys.executable).parent / "hadolint"
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
COMPOSE_FILE = (ROOT / "docker/compose.yaml").read_text()
SCRIPT = (ROOT / "docker/compose.sh").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
DOCS = (ROOT / "docs/guides/images.md").read_text()


def pins(file):
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / file).read_text(), re.MULTILINE))


def test_hadolint_finds_nothing(tmp_path):
    theirs = tmp_path / "Dockerfile"
    theirs.write_text(project_image_of_the_docs())
    for file in (ROOT / "docker/Dockerfile", theirs):
        assert ran([HADOLINT, file], code=0).stdout == ""


def test_the_image_has_the_versions_that_a_machine_gets_and_nothing_for_tests():
    ours, everywhere = pins("requirements/image.txt"), pins("requirements/constraints.txt")
    shared = ours.keys() & everywhere.keys()
    assert {"ray", "torch", "numpy", "pydantic", "boto3", "uv"} <= shared
    assert {name: ours[name] for name in shared} == {name: everywhere[name] for name in shared}
    only_for_tests = {"pytest", "moto", "mypy", "ruff", "awscli", "hatchling"}
    assert not ours.keys() & only_for_tests


def test_the_base_that_tests_stand_in_for_is_the_one_of_the_dockerfile():
    assert f"ARG BASE={BASE}\n" in DOCKERFILE


def test_everything_that_is_copied_is_sent_to_the_builder():
    """And nothing else: the builder is sent no run, no secret, no environment."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"(?m)^COPY (?!--from)((?:\S+ )+)\S+$", DOCKERFILE)
    assert {file for files in copied for file in files.split()} == allowed


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["ENGINE=/nowhere/podman"], "/nowhere/podman is not installed\ninstall one of the two"),
        (["ENGINE=true", "CA_BUNDLE=/nowhere/ca.pem"], "CA_BUNDLE=/nowhere/ca.pem cannot be read\n"),
        (["ENGINE=true", "TARGET=tpu"], "TARGET=tpu is neither cpu nor gpu\n"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_is_built(settings, said):
    done = make_image(*settings, check=False)
    assert done.returncode == 2
    assert f"image: {said}" in done.stderr


SERVICES = yaml.safe_load(COMPOSE_FILE)["services"]
WORKERS = [name for name in SERVICES if name.startswith("worker-")]


def command(service):
    return "\n".join(SERVICES[service]["command"])


def only(pattern, text):
    """The one value that the pattern finds, however often."""
    (found,) = set(re.findall(pattern, text))
    return found


def test_the_image_is_the_one_that_make_builds():
    built = only(r"(?m)^IMAGE \?= (\S+)$", MAKEFILE)
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
