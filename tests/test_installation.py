"""What `pip install .` brings: the submit side and no tool; `.[train]` what the code imports."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest

from support.commands import ran

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OPTIONAL = ("mlflow", "wandb")  # imported where installed
# Parts of a dependency, which it pins itself.
BROUGHT_BY = {
    "botocore": "boto3",
    "s3transfer": "boto3",
    "urllib3": "boto3",
    "pydantic-core": "pydantic",
    "pyarrow": "ray",
    "aiohttp": "ray",  # its job client imports it
    "jsonpointer": "jsonpatch",
    "mlflow": "mlflow-skinny",
}


FOR_AUTHORS = ROOT / "src" / "clustertrain" / "testing.py"
"""The contract of a launcher, which its author's tests import: they have pytest."""


def names(requirements):
    return {re.match(r"[\w.-]+", each)[0].lower().replace("_", "-") for each in requirements}


def imported():
    """The distributions that the code imports, apart from itself and the standard library."""
    modules = set()
    for path in {*(ROOT / "src").rglob("*.py")} - {FOR_AUTHORS}:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module.partition(".")[0])
    found = packages_distributions()
    others = modules - sys.stdlib_module_names - {"clustertrain", "_typeshed"}
    known = {(found.get(module) or [module])[0].lower().replace("_", "-") for module in others}
    return {BROUGHT_BY.get(name, name) for name in known}


def test_the_code_imports_what_an_installation_brings_and_no_tool():
    run_time = names(PROJECT["dependencies"]) | names(EXTRAS["train"])
    optional = set().union(*(names(EXTRAS[extra]) for extra in OPTIONAL))
    assert imported() - optional <= run_time
    assert {"torch", "ray", "click"} <= imported()  # the search finds something


def test_an_installation_for_submitting_is_light():
    light = {"boto3", "click", "jsonpatch", "pydantic", "pyyaml", "rich", "typing-extensions", "urllib3"}
    assert names(PROJECT["dependencies"]) == light


@pytest.fixture
def submit_side(tmp_path):
    """Runs clustertrain in an environment that has exactly what `pip install .` brings."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "light"], check=True)
    (packages,) = (tmp_path / "light" / "lib").glob("python*/site-packages")
    wanted, found = ["clustertrain"], set()
    while wanted:
        name = wanted.pop()
        try:
            of = distribution(name)
        except PackageNotFoundError:
            continue  # for another version of Python
        if name in found:
            continue
        found.add(name)
        wanted += names(each for each in of.requires or () if "extra ==" not in each)
        for entry in {file.parts[0] for file in of.files} - {"..", "__pycache__"}:
            (packages / entry).symlink_to(of.locate_file(entry))

    def run(*arguments):
        command = [tmp_path / "light" / "bin" / "python", "-m", "clustertrain.cli", *arguments]
        return ran(command, cwd=tmp_path)

    return run


def test_an_installation_for_submitting_checks_the_unchanged_job_of_init(submit_side, tmp_path):
    """What only a worker needs is a note, and `run` says how torch and Ray are installed there."""
    assert submit_side("init", "mine").returncode == 0
    remedy = "Install clustertrain with its extra train into "
    note = f"note: train.log: tensorboard: not installed here; the nodes need it. {remedy}"
    done = submit_side("check", "mine/job.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    first, second, _ = done.stdout.splitlines()
    assert first.startswith(note)
    assert second == "note: the code was not imported: torch is not installed here"
    done = submit_side("check", "--no-code", "--defaults", "mine/job.yaml")
    assert done.returncode == 0
    assert done.stderr.startswith(note)
    assert "task: task:SineTask" in done.stdout
    python = ("--set", "slurm.python=/envs/train/bin/python")
    assert "#SBATCH" in submit_side("render", "--to", "slurm", "mine/job.yaml", *python).stdout
    done = submit_side("run", "mine/job.yaml")
    assert done.returncode == 2
    assert f"needs torch and ray: not installed here.\n{remedy}" in done.stderr
    (tmp_path / "mine" / "task.py").write_text("import torch\ndef train(config): pass\n")
    (tmp_path / "mine" / "job.yaml").write_text("name: a\nfunction: task:train\n")
    done = submit_side("check", "mine/job.yaml")
    assert done.returncode == 0, done.stderr
    assert (
        "note: not all of the code could be checked here: function: task:train does not import" in done.stdout
    )
    (tmp_path / "mine" / "task.py").write_text("def train(config): 1 = 2\n")
    assert submit_side("check", "mine/job.yaml").returncode == 2  # a mistake on every machine
