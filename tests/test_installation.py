"""What `pip install .` brings: the submit side and no tool; `.[train]` what the code imports."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OPTIONAL = ("kubernetes", "mlflow", "wandb", "webdataset")  # imported by the code where they are installed
# Parts of a dependency, which it pins itself.
BROUGHT_BY = {
    "botocore": "boto3",
    "urllib3": "boto3",
    "pydantic-core": "pydantic",
    "pyarrow": "ray",
    "jsonpointer": "jsonpatch",
    "mlflow": "mlflow-skinny",
}


def names(requirements):
    return {re.match(r"[\w.-]+", each)[0].lower().replace("_", "-") for each in requirements}


def imported():
    """The distributions that the code imports, apart from itself and the standard library."""
    modules = set()
    for path in (ROOT / "src").rglob("*.py"):
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
    light = {"boto3", "click", "jsonpatch", "pydantic", "pyyaml", "rich", "urllib3"}
    assert names(PROJECT["dependencies"]) == light


def test_tools_are_in_the_extra_dev_only():
    tools = names(EXTRAS["dev"]) - {"clustertrain"}
    assert {"pytest", "ruff", "mypy", "moto", "hypothesis", "import-linter"} <= tools
    for extra in ("train", *OPTIONAL):
        assert not names(EXTRAS[extra]) & tools
    assert not names(PROJECT["dependencies"]) & tools
