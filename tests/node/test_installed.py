"""The remedy for a missing package repeats how this copy was installed, and never a name from an index."""

import json
import re
import shlex
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import pytest

from clustertrain.node import installed
from clustertrain.node.installed import how_to_install, how_to_install_later, how_to_install_loggers

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PIP = [sys.executable, "-m", "pip", "install"]
REPOSITORY = "https://example.org/team/kit"


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """Makes a copy of clustertrain that was installed from there; `direct_url.json` is pip's record of it."""
    folder = tmp_path / "clustertrain-1.0.dist-info"
    folder.mkdir()
    required = "".join(f"Requires-Dist: {each}; extra == 'wandb'\n" for each in EXTRAS["wandb"])
    (folder / "METADATA").write_text(f"Name: clustertrain\nVersion: 1.0\nRequires-Dist: click\n{required}")

    def installed_from(**origin):
        if origin:
            (folder / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.setattr(installed, "distribution", lambda name: Distribution.at(folder))

    return installed_from


def added():
    return shlex.split(how_to_install("wandb"))


@pytest.mark.parametrize("name", ["kit", "with space", "clustertrain-1.0-py3-none-any.whl"])
def test_a_folder_or_a_wheel_is_installed_again(copy, tmp_path, name):
    (tmp_path / name).touch()
    copy(url=(tmp_path / name).as_uri(), archive_info={})
    assert added() == [*PIP, f"{tmp_path / name}[wandb]"]


def test_a_copy_that_follows_its_checkout_goes_on_doing_so(copy, tmp_path):
    copy(url=tmp_path.as_uri(), dir_info={"editable": True})
    assert added() == [*PIP, "-e", f"{tmp_path}[wandb]"]


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        ({"url": f"{REPOSITORY}/kit.whl", "archive_info": {}}, f"{REPOSITORY}/kit.whl"),
        (
            {
                "url": REPOSITORY,
                "vcs_info": {"vcs": "git", "commit_id": "12ab"},
            },
            f"git+{REPOSITORY}@12ab",
        ),
        (
            {"url": "file:///r", "vcs_info": {"vcs": "git", "commit_id": "12ab"}, "subdirectory": "kit"},
            "git+file:///r@12ab#subdirectory=kit",
        ),
    ],
    ids=["wheel", "repository", "subdirectory"],
)
def test_an_address_is_installed_again(copy, origin, source):
    copy(**origin)
    assert added() == [*PIP, f"clustertrain[wandb] @ {source}"]


def test_where_the_source_is_unknown_or_gone_the_packages_of_the_extra_are_named(copy, tmp_path):
    copy()
    assert added() == [*PIP, *EXTRAS["wandb"]]
    copy(url=(tmp_path / "removed").as_uri(), dir_info={})
    assert added() == [*PIP, *EXTRAS["wandb"]]


def test_a_later_version_comes_from_where_this_one_came(copy, tmp_path):
    text = "install a later clustertrain"
    copy()
    assert how_to_install_later() == text
    copy(url=tmp_path.as_uri(), dir_info={"editable": True})
    assert how_to_install_later().endswith(
        f"from where this one came: {shlex.join([*PIP, '-e', str(tmp_path)])}"
    )
    copy(url=REPOSITORY, vcs_info={"vcs": "git", "commit_id": "12ab"})
    assert how_to_install_later().endswith(f" install 'clustertrain @ git+{REPOSITORY}'")


def test_a_copy_that_is_not_installed_has_a_list_to_go_by(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installed, "distribution", missing)
    assert how_to_install("train") == "Install the packages of train in clustertrain's pyproject.toml."
    assert how_to_install_later() == "install a later clustertrain"


def test_a_python_without_pip_is_that_of_uv(copy, tmp_path, monkeypatch):
    copy(url=tmp_path.as_uri(), dir_info={})
    monkeypatch.setattr(installed, "distributions", lambda name: [])
    assert added() == ["uv", "pip", "install", "--python", sys.executable, f"{tmp_path}[wandb]"]


def test_the_remedy_of_this_copy_is_a_source_that_is_here():
    """This one is a checkout."""
    *command, last = shlex.split(how_to_install_loggers(["wandb", "tensorboard"]))
    folder, extras = re.fullmatch(r"(.*)\[([\w,]+)\]", last).groups()
    assert (Path(folder) / "pyproject.toml").is_file()
    assert extras == "train,wandb"
    assert "clustertrain" not in command


def test_no_text_advises_a_package_of_our_name_from_an_index():
    """Code, docs, examples, the image: nobody has to own the name on PyPI for them to be safe."""
    advised = re.compile(r"""install\s+(-\S+\s+)*['"]?clustertrain\b(?! has| repeats|\[\w+\] @)""")
    assert advised.search("pip\ninstall 'clustertrain[train]'") and advised.search("pip install clustertrain")
    texts = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
    for folder in ("src", "docs", "docker", "examples", "slurm", "k8s", "benchmarks"):
        texts += [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    found = [path for path in texts if advised.search(path.read_text(errors="replace"))]
    assert found == []
    assert EXTRAS["webdataset"][-1] in (ROOT / "src/clustertrain/training/data/shards.py").read_text()
