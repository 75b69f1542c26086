"""A site file gives defaults of `slurm`, `kubernetes` and `scratch`, key by key, and nothing else."""

import sys

import pytest

from clustertrain.errors import JobError
from clustertrain.job.file import parse_job
from clustertrain.job.model import Job
from clustertrain.job.site import with_site
from clustertrain.launchers.slurm.script import python_on_nodes
from clustertrain.node import installed

SITE = "slurm: {partition: gpu, account: physics, python: '${SW:-/sw}/bin/python', gpu_type: a100}\n"


@pytest.fixture
def site_file(tmp_path):
    """Writes a site file; returns the environment that finds it."""

    def write(text):
        path = tmp_path / "config" / "clustertrain" / "site.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return {"XDG_CONFIG_HOME": str(tmp_path / "config")}

    return write


def job(image=None, **slurm) -> Job:
    return Job.model_validate({"name": "a", "function": "m:f", "image": image, "slurm": slurm})


def test_the_job_file_wins_key_by_key(site_file):
    merged = with_site(job(partition="short", account=None, time_limit="1h"), site_file(SITE)).slurm
    assert (merged.partition, merged.account, merged.time_limit_s) == ("short", "physics", 3600)
    assert (merged.python, merged.gpu_type) == ("/sw/bin/python", "a100")


def test_a_key_that_the_job_file_sets_to_its_default_wins(site_file):
    environ = site_file("slurm: {exclusive: true, memory_as: mem-per-cpu, setup: [module load a]}\n")
    assert with_site(job(), environ).slurm.exclusive
    merged = with_site(job(exclusive=False, memory_as="mem", setup=[]), environ).slurm
    assert (merged.exclusive, merged.memory_as, merged.setup) == (False, "mem", ())


def test_the_site_file_is_found_in_its_places(site_file, tmp_path):
    below_home = tmp_path / "home" / ".config" / "clustertrain"
    below_home.mkdir(parents=True)
    (below_home / "site.yaml").write_text("slurm: {account: home}")
    (tmp_path / "named.yaml").write_text("slurm: {account: named}")
    home, xdg = {"HOME": str(tmp_path / "home")}, site_file(SITE)
    named = {"CLUSTERTRAIN_SITE": str(tmp_path / "named.yaml")}
    assert with_site(job(), home).slurm.account == "home"
    assert with_site(job(), home | xdg).slurm.account == "physics"
    assert with_site(job(), home | xdg | named).slurm.account == "named"
    assert with_site(job(), {"HOME": str(tmp_path)}) == job()


@pytest.mark.parametrize("text", ["", "slurm:\n"])
def test_an_empty_file_changes_nothing(site_file, text):
    assert with_site(job(account="a"), site_file(text)) == job(account="a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slurm: {acount: a}\n", "site.yaml:1:9: slurm: unknown key 'acount'\ndid you mean 'account'?"),
        ("slurm:\n  qos: a b\n", "site.yaml:2:8: slurm.qos: 'a b' is not accepted\nmust be a name"),
        ("storage: runs\n", "unknown key 'storage'\na site file has only the keys kubernetes, slurm and"),
        ("[1]\n", "site.yaml:1:1: a site file is a mapping of keys\n"),
        ("slurm: {account: '${X}'}\n", "site.yaml:1:18: slurm.account: '${X}' is not accepted\n"),
        ("slurm: {python: '${X}'}\n", "needs the environment variable X, which is not set\n"),
        ("slurm: {container: pyxis}\n", "slurm.container: pyxis is given without an image\n"),
        ("slurm: {mounts: [/a]}\n", "slurm.mounts: /a is given without a container\n"),
    ],
)
def test_a_site_file_that_is_wrong_is_named(site_file, text, message):
    with pytest.raises(JobError) as caught:
        with_site(job(), site_file(text))
    assert message in str(caught.value)
    assert "site.yaml" in str(caught.value)
    assert 2 <= len(str(caught.value).splitlines()) <= 3


def test_a_named_file_that_is_not_there(tmp_path):
    with pytest.raises(JobError, match=r"CLUSTERTRAIN_SITE names .*, which does not exist, or .*\ncreate it"):
        with_site(job(), {"CLUSTERTRAIN_SITE": str(tmp_path / "none.yaml")})


def test_a_job_does_without_the_sites_container(site_file):
    environ = site_file("slurm: {container: apptainer, mounts: [/data]}\n")
    assert with_site(job(image="a.sif"), environ).slurm.mounts == ("/data",)
    merged = with_site(job(container="none"), environ).slurm
    assert (merged.container, merged.mounts) == ("none", ())


def test_the_python_on_the_nodes(monkeypatch):
    assert python_on_nodes(job(python="/sw/python")) == "/sw/python"
    assert python_on_nodes(job(image="i", container="pyxis")) == "python3"
    assert python_on_nodes(job(image="i", container="pyxis", python="/opt/python")) == "/opt/python"
    monkeypatch.setattr(installed, "find_spec", lambda name: object())
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    assert python_on_nodes(job()) == "/venv/bin/python"
    monkeypatch.setattr(installed, "find_spec", lambda name: None)
    with pytest.raises(JobError, match=r"/venv/bin/python has no torch and no ray\n.*\n.*slurm\.python"):
        python_on_nodes(job())


def test_labels_and_annotations_of_a_site_are_added_to_those_of_the_job(site_file):
    environ = site_file(
        "kubernetes: {labels: {owner: site, team: a}, annotations: {cost: '1'}, pod_labels: {p: site}}\n"
    )
    own = parse_job(
        "name: a\nfunction: m:f\nkubernetes: {labels: {owner: me}, pod_labels: {q: me}}\n", "job.yaml"
    )
    merged = with_site(own, environ).kubernetes
    assert merged.labels == {"owner": "me", "team": "a"}
    assert (merged.annotations, merged.pod_labels) == ({"cost": "1"}, {"q": "me"})


def test_the_scratch_folder_of_the_nodes(site_file):
    environ = site_file("scratch: SLURM_TMPDIR\n")
    assert with_site(job(), environ).scratch == "SLURM_TMPDIR"
    assert with_site(job().model_copy(update={"scratch": "/fast"}), environ).scratch == "/fast"
