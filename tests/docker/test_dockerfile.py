"""The files that an image is made of, looked at without making one."""

import re
import sys
from pathlib import Path

import pytest

from clusters.containers import BASE, ROOT, make_image, project_image_of_the_docs
from commands import ran

HADOLINT = Path(sys.executable).parent / "hadolint"


def pins(file):
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / file).read_text(), re.MULTILINE))


def test_hadolint_finds_nothing(tmp_path):
    theirs = tmp_path / "Dockerfile"
    theirs.write_text(project_image_of_the_docs())
    for file in (ROOT / "docker/Dockerfile", theirs):
        assert ran([HADOLINT, file], code=0).stdout == ""


def test_the_image_has_the_versions_that_a_machine_gets():
    ours, everywhere = pins("docker/constraints.txt"), pins("constraints.txt")
    shared = ours.keys() & everywhere.keys()
    assert {"ray", "torch", "numpy", "pydantic", "boto3", "uv"} <= shared
    assert {name: ours[name] for name in shared} == {name: everywhere[name] for name in shared}


def test_the_image_holds_nothing_that_only_tests_and_benchmarks_need():
    assert not pins("docker/constraints.txt").keys() & {
        "pytest",
        "moto",
        "mypy",
        "ruff",
        "awscli",
        "hatchling",
    }


def test_the_base_that_tests_stand_in_for_is_the_one_of_the_dockerfile():
    assert f"ARG BASE={BASE}\n" in (ROOT / "docker/Dockerfile").read_text()


def test_everything_that_is_copied_is_sent_to_the_builder():
    """And nothing else: the builder is sent no run, no secret, no environment."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(
        r"^COPY (?!--from)((?:\S+ )+)\S+$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE
    )
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
