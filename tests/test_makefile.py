import os
import re
import sys
from pathlib import Path

import pytest

from support.commands import ran

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
VENV = Path(sys.prefix)


def make(*arguments):
    command = ["make", "--no-print-directory", *arguments]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}  # test-gpu has no plugins
    return ran(command, cwd=ROOT, env=environment)


def test_help_lists_every_target():
    listed = [line.split()[1] for line in make("help").stdout.splitlines()]
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert sorted(listed) == sorted(phony)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ("submit-slurm JOB=a.yaml", "submit --to slurm a.yaml"),
        ("submit-k8s JOB=a.yaml", "submit --to kubernetes a.yaml"),
        ("submit-k8s JOB=a.yaml IMAGE=b/c:1", "submit --to kubernetes a.yaml --set image=b/c:1"),
        ("train ARGS=--fresh", "run examples/digits/job.yaml --fresh"),
    ],
)
def test_a_job_is_started_by_the_program_that_was_installed(arguments, command):
    *installing, starting = make("--dry-run", "VENV=.elsewhere", *arguments.split()).stdout.splitlines()
    assert re.search(rf"(^| )\.elsewhere/bin/clustertrain {command}(;|$)", starting)
    assert any("--editable" in line for line in installing)


def test_the_gpu_tests_are_found_and_skipped_only_for_want_of_a_gpu():
    """`make test-gpu` itself, so that it cannot break unnoticed on machines without a GPU."""
    sources = [path.read_text() for path in (ROOT / "tests" / "gpu").glob("test_*.py")]
    done = make("test-gpu", f"PYTHON={sys.executable}")
    assert done.returncode == 0, done.stdout + done.stderr
    (collected,) = re.findall(r"^collected (\d+) items$", done.stdout, re.MULTILINE)
    assert int(collected) >= sum(len(re.findall(r"^def test_", each, re.MULTILINE)) for each in sources) > 0
    reasons = re.findall(r"^SKIPPED .*?: (.*)$", done.stdout, re.MULTILINE)
    assert set(reasons) <= {"no CUDA device: GPU tests need one"}


def test_every_folder_of_the_source_has_unit_tests():
    done = make("unit", "-o", f"{VENV}/.installed", f"VENV={VENV}", "UNIT_ARGS=--collect-only -n 0")
    rooms = {path.parent.name for path in (ROOT / "src" / "clustertrain").glob("*/__init__.py")}
    assert rooms <= set(re.findall(r"^tests/(\w+)/", done.stdout, re.MULTILINE)), done.stdout + done.stderr
    assert "left out" in done.stdout


def packages(tmp_path, *arguments):
    """The packages that make would install from constraints.txt."""
    done = make(f"VENV={tmp_path}", f"{tmp_path}/constraints.txt", *arguments)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "constraints.txt").read_text().splitlines()
    assert all(line.startswith(" ") for line in lines if "==" not in line)  # hashes stay with their package
    return {line.partition("==")[0] for line in lines if "==" in line}


def test_another_torch_index_leaves_torch_and_cuda_to_it(tmp_path):
    (tmp_path / "all").mkdir()
    everything = packages(tmp_path / "all")
    (tmp_path / "cpu").mkdir()
    without = packages(tmp_path / "cpu", "TORCH_INDEX=https://example.org/cpu")
    gone = everything - without
    assert {"torch", "triton", "nvidia-cudnn-cu13", "cuda-toolkit"} <= gone
    assert {"ray", "torchmetrics", "sympy", "uv", "hatchling"} <= without
    assert all(name in ("torch", "triton") or name.startswith(("nvidia-", "cuda-")) for name in gone)


def test_everything_that_is_installed_has_a_hash():
    blocks = (ROOT / "requirements/constraints.txt").read_text().split("\n")
    pinned = [n for n, line in enumerate(blocks) if line and line[0] not in " #"]
    assert len(pinned) > 60
    for n in pinned:
        assert "==" in blocks[n]
        assert "--hash=sha256:" in blocks[n + 1]
