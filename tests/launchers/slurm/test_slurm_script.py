"""The script of a job: what it asks SLURM for, that values stay values, and that the goldens are fresh."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.errors import JobError
from clustertrain.job.model import Job
from clustertrain.launchers.scheduler.needs_of_job import lead_time_s as common_lead_time_s
from clustertrain.launchers.slurm.script import lead_time_s
from support.commands import ran
from support.sbatch_script import needs, script

ROOT = Path(__file__).parents[3]
GOLDENS = sorted(path.stem for path in (ROOT / "slurm").glob("*.yaml"))
FUNCTION = {"name": "a", "function": "m:f", "storage": "/runs", "code": "/code"}


def job(slurm=None, **keys) -> Job:
    return Job.model_validate(FUNCTION | keys | {"slurm": slurm or {}})


def options(made, **arguments) -> dict[str, str]:
    """The #SBATCH lines, as option and value."""
    lines = [line for line in script(made, **arguments).splitlines() if line.startswith("#SBATCH --")]
    found = [line.removeprefix("#SBATCH --").partition("=") for line in lines]
    assert len({option for option, _, _ in found}) == len(found)
    return {option: value for option, _, value in found}


def evaluated(text: str, folder: Path, **environ: str) -> list[str]:
    """What bash makes of the part between the templates: the words of launch, then job and at_time_limit."""
    marks = r"^(# The values of this job\.|# From here on the script)"
    _, _, values, mark, _ = re.split(marks, text, flags=re.M)[:5]
    assert mark
    done = subprocess.run(
        ["/bin/bash", "-u", "-c", values + '\nprintf "%s\\0" "${launch[@]}" "$job" "$at_time_limit"'],
        cwd=folder,
        env={"PATH": "/nowhere", "SLURM_JOB_NUM_NODES": "2", "temporary": "/tmp"} | environ,
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    return done.stdout.decode().split("\0")[:-1]


# ------------------------------------------------------------------------------------------------ goldens


@pytest.mark.parametrize("name", GOLDENS)
def test_the_scripts_in_the_repository_are_what_is_rendered(name, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("CLUSTERTRAIN_SITE", raising=False)
    command = ["render", "--to", "slurm", f"slurm/{name}.yaml"]
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, result.stderr) == (0, "")
    golden = (ROOT / "slurm" / f"{name}.sbatch").read_bytes()
    assert result.stdout_bytes == golden, (
        f"refresh it: clustertrain {' '.join(command)} > slurm/{name}.sbatch"
    )
    assert str(ROOT) not in golden.decode()


def test_set_is_told_to_count_for_submit_alone(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    result = CliRunner().invoke(
        main, ["render", "--to", "slurm", "slurm/digits.yaml", "--set", "slurm.qos=low"]
    )
    assert "#SBATCH --qos=low\n" in result.stdout
    assert "without the changes of --set" in result.stderr


# -------------------------------------------------------------------------------------- what is asked for


GPUS = {"workers": 4, "nodes": 2, "gpus_per_worker": 2, "cpus_per_worker": 2.5, "memory_per_worker": "3Gi"}


ASKED = [
    ({"workers": [2, 6], "nodes": [1, 3]}, {}, {"nodes": "1-3", "cpus-per-task": "2"}),
    ({"workers": [2, 8]}, {}, {"nodes": "1", "cpus-per-task": "8"}),
    ({"workers": 10, "cpus_per_worker": 1.1}, {}, {"cpus-per-task": "11"}),
    ({"workers": 3, "cpus_per_worker": 0.5}, {}, {"cpus-per-task": "2"}),
    (GPUS, {}, {"nodes": "2", "cpus-per-task": "5", "gres": "gpu:4", "mem": f"{2 * 3072 + 2048}M"}),
    (GPUS, {"gpu_type": "a100"}, {"gres": "gpu:a100:4", "gpus-per-node": None}),
    (GPUS, {"gpus_as": "gpus-per-node"}, {"gpus-per-node": "4", "gres": None}),
    (GPUS, {"gpus_as": "gpus-per-node", "gpu_type": "a100"}, {"gpus-per-node": "a100:4"}),
    (GPUS, {"memory_as": "mem-per-cpu"}, {"mem-per-cpu": "1639M", "mem": None}),  # 8192 / 5 = 1638.4
    ({"nodes": 2, "gpus_per_node": 8}, {}, {"nodes": "2", "gres": "gpu:8", "cpus-per-task": "8"}),
    ({"workers": 1, "memory_per_worker": 2**20 + 1}, {}, {"mem": "2050M"}),
    ({}, {"gpu_type": "a100", "exclusive": True}, {"gres": None, "mem": None, "exclusive": ""}),
]


@pytest.mark.parametrize(("resources", "slurm", "asked"), ASKED)
def test_resources_as_the_site_is_asked_for_them(resources, slurm, asked):
    found = options(job(slurm, resources=resources))
    assert {option: found.get(option) for option in asked} == asked


def test_slices_of_a_gpu_are_for_one_rank_of_a_node():
    slices = {"gpu_type": "1g.10gb"}
    one = job(slurm=slices, resources={"workers": 2, "nodes": 2, "gpus_per_worker": 1})
    assert options(one)["gres"] == "gpu:1g.10gb:1"
    several = job(slurm=slices, resources={"workers": 2, "nodes": 1, "gpus_per_worker": 1})
    with pytest.raises(JobError, match=r"slurm.gpu_type: 1g.10gb is a slice .* = 2 slices in one node"):
        script(several)


def test_no_more_nodes_than_the_global_batch_divides_into():
    train = {"epochs": 1, "global_batch_size": 8}
    made = Job.model_validate(
        {"name": "a", "task": "m:C", "train": train, "resources": {"workers": [2, 6], "nodes": [1, 3]}}
    )
    assert options(made)["nodes"] == "1-2"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1800, "00:30:00"), (59.5, "00:01:00"), (90_061, "1-01:01:01"), ("100d", "100-00:00:00")],
)
def test_the_time_limit_as_slurm_writes_it(seconds, text):
    assert options(job({"time_limit": seconds}))["time"] == text


@pytest.mark.parametrize(
    ("slurm", "grace", "measured_save_s", "lead_s"),
    [
        ({}, "30s", None, 90),
        ({}, "5m", None, 360),
        ({}, "30s", 10.0, 60),  # 2 × 10 + 30 = 50
        ({}, "30s", 100.0, 230),
        ({}, "30s", 1e6, 65_535),
        ({"lead_time": "45s"}, "30s", 100.0, 45),
    ],
)
def test_the_lead_time_is_the_measured_save_twice_and_the_grace(slurm, grace, measured_save_s, lead_s):
    made = job(slurm, failures={"grace": grace})
    assert lead_time_s(made, needs(made, lead_s=common_lead_time_s(made, measured_save_s))) == lead_s


# ---------------------------------------------------------------------------------- values stay values


def srun(cpus=1):
    step = ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", f"--cpus-per-task={cpus}"]
    return [*step, "--mem=0", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--export=ALL"]


AGENT = ["-m", "clustertrain.launchers.slurm.agent"]


NASTY = {
    "space": "a b",
    "single": "a'b",
    "double": 'a"b',
    "substitution": "$(touch canary)",
    "backticks": "`touch canary`",
    "semicolon": "a; touch canary",
    "pipe": "a|touch canary",
    "glob": "*",
    "backslash": "a\\",
    "unicode": "é 漢",
    "parenthesis": ") touch canary (",
    "comment": "a #b",
}


@pytest.mark.parametrize("value", NASTY.values(), ids=NASTY)
@pytest.mark.parametrize("container", ["apptainer", "pyxis"])
def test_nothing_in_a_value_is_executed_with_a_container(tmp_path, container, value):
    slurm = {"container": container, "mounts": [f"/m {value}:/in/{value}:ro"]}
    made = job(slurm, image=f"/images/{value}", storage=f"/runs/{value}", code=f"/code/{value}")
    text = script(made, job_file=f"{value}/job.yaml")
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
    words = evaluated(text, tmp_path)
    together = "\n".join(words)
    for whole in (
        f"/runs/{value}:/runs/{value}",
        f"/code/{value}:/code/{value}",
        f"/m {value}:/in/{value}:ro",
    ):
        assert whole in together
    assert any(word.endswith(f"/images/{value}") for word in words)
    assert words[-2] == f"{tmp_path}/{value}/job.yaml"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("job_file", ["a\n#SBATCH --nodes=9", "a\rb", "\x1b[31m"])
def test_a_path_that_would_leave_its_comment_is_refused(job_file):
    with pytest.raises(JobError, match="control characters\n"):
        script(job(), job_file=job_file)


@pytest.mark.parametrize("value", NASTY.values(), ids=NASTY)
def test_nothing_in_a_value_is_executed_and_the_lines_of_setup_are_one_value(tmp_path, value):
    """Only their own shell executes these: tests/slurm/test_setup.py."""
    setup = [f"a {value};", "launch=overwritten", "<<END"]
    text = script(job({"setup": setup}), job_file=f"{value}/job.yaml", python=f"/sw/{value}/python")
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
    words = evaluated(text.replace("launch=(", 'launch=( "$setup"', 1), tmp_path)
    assert words == ["\n".join(setup), *srun(), f"/sw/{value}/python", *AGENT, f"{value}/job.yaml", "stop"]
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------- containers

DATA = {
    "file": {"uri": "/data/a.tar"},
    "uri": {"uri": "file:///sets/b"},
    "inside": {"uri": "/code/c.tar"},
    "web": {"uri": "https://example.org/d.tar"},
}


def in_container(tmp_path, container, image, job_file="x/job.yaml", **resources):
    slurm = {"container": container, "mounts": ["/m", "/n:/o:ro"], "environment": ["AWS_PROFILE"]}
    made = job(slurm, image=image, data=DATA, resources=resources)
    words = evaluated(script(made, python="python3", job_file=job_file), tmp_path, temporary="/big tmp")
    assert words[-5:-2] == ["python3", *AGENT]
    assert words[-2] == str(tmp_path / job_file)
    return words[len(srun()) : -5]


def mounts(tmp_path):
    return [
        "/big tmp:/big tmp",
        f"{tmp_path}/x:{tmp_path}/x",
        "/runs:/runs",
        "/code:/code",
        "/data/a.tar:/data/a.tar:ro",
        "/sets/b:/sets/b:ro",
        "/m:/m",
        "/n:/o:ro",
    ]


def test_apptainer_binds_what_the_job_names(tmp_path):
    words = in_container(tmp_path, "apptainer", "/images/a.sif")
    binds = [word for mount in mounts(tmp_path) for word in ("--bind", mount)]
    assert words == ["apptainer", "exec", *binds, "/images/a.sif"]
    assert in_container(tmp_path, "apptainer", "a.sif", gpus_per_worker=1)[2] == "--nv"


def test_pyxis_mounts_what_the_job_names(tmp_path):
    assert in_container(tmp_path, "pyxis", "train:1") == [
        "--container-image=train:1",
        f"--container-mounts={','.join(mounts(tmp_path))}",
        "--container-env=NVIDIA_VISIBLE_DEVICES,NVIDIA_DRIVER_CAPABILITIES,AWS_PROFILE",
        "--no-container-mount-home",
        "--no-container-remap-root",
        "--no-container-entrypoint",
    ]


@pytest.mark.parametrize(
    ("container", "image", "named"),
    [
        ("apptainer", "team/train:1", "docker://team/train:1"),
        ("apptainer", "docker://team/train:1", "docker://team/train:1"),
        ("pyxis", "registry.example.org/team/train:1", "registry.example.org#team/train:1"),
        ("pyxis", "docker://localhost:5000/train", "localhost:5000#train"),
        ("pyxis", "registry.example.org#team/train:1", "registry.example.org#team/train:1"),
        ("pyxis", "team/train:1", "team/train:1"),
        ("pyxis", "/images/a.b/train.sqsh", "/images/a.b/train.sqsh"),
    ],
)
def test_an_image_is_named_as_its_container_runtime_names_it(tmp_path, container, image, named):
    words = in_container(tmp_path, container, image)
    given = words[-1] if container == "apptainer" else words[0].removeprefix("--container-image=")
    assert given == named


@pytest.mark.parametrize(
    ("gpus", "environ", "visible"),
    [
        (1, {}, "all"),
        (1, {"NVIDIA_VISIBLE_DEVICES": "0,1"}, "0,1"),
        (0, {"NVIDIA_VISIBLE_DEVICES": "all"}, "void"),
    ],
)
def test_a_container_has_gpus_only_if_the_job_has(tmp_path, gpus, environ, visible):
    made = job({"container": "pyxis"}, image="a", resources={"gpus_per_worker": gpus})
    text = script(made).replace("launch=(", 'launch=( "$NVIDIA_VISIBLE_DEVICES"', 1)
    assert evaluated(text, tmp_path, **environ)[0] == visible


def mailbox(text: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the first template; it prints the folder that it chose, and the owner of the mailbox."""
    first, _, _ = text.partition("# The values of this job")
    return ran(
        ["/bin/bash", "-u", "-c", first + '\necho "$temporary"; cat "$CLUSTERTRAIN_MAIL/owner"'],
        env={"PATH": os.environ["PATH"]} | environ,
    )


def test_the_mailbox_is_in_the_first_temporary_folder_that_can_be_written_and_leaves_with_its_shell(tmp_path):
    long = tmp_path / ("a b" * 60)
    long.mkdir()
    file = tmp_path / "file"
    file.touch()
    for environ, expected in (
        ({}, "/tmp"),
        ({"TMPDIR": str(long)}, str(long)),
        ({"TMPDIR": str(tmp_path / "absent")}, "/tmp"),
        ({"TMPDIR": str(file)}, "/tmp"),
        ({"TMPDIR": "/proc"}, "/tmp"),
    ):
        done = mailbox(script(job()), **environ)
        chosen, owner = done.stdout.splitlines()
        assert (chosen, done.stderr, done.returncode) == (expected, "", 0)
        pid = json.loads(owner)["pid"]
        assert not [
            path for path in Path(chosen).glob("ct-mail-*") if f'"pid": {pid},' in read(path / "owner")
        ]


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("path", ["/runs,2", "/runs:2"])
def test_a_path_that_no_container_can_have_is_refused(path):
    made = job({"container": "apptainer"}, image="a", storage=path)
    with pytest.raises(JobError, match=f"{path}: a path with ',' or ':', which apptainer cannot mount"):
        script(made)
    assert script(job(storage=path))


# ------------------------------------------------------------------------------------------- shellcheck

WORDS = {
    "constraint": "[a|b]",
    "dependency": "singleton",
    "time_limit": "2d",
    "at_time_limit": "requeue",
    "setup": ["module load cuda/12", "export NCCL_DEBUG=WARN"],
    "options": ["--nodelist=node[1-3]", "--mail-user=a@example.org"],
}
EVERY_KIND = [
    *({"resources": resources, "slurm": slurm} for resources, slurm, _ in ASKED),
    {"slurm": WORDS},
    *(
        {
            "image": "registry.example.org/train:1",
            "resources": {"gpus_per_worker": gpus},
            "data": DATA,
            "slurm": {"container": container, "mounts": ["/a b:/c"], "environment": ["AWS_PROFILE"]},
        }
        for container in ("apptainer", "pyxis")
        for gpus in (0, 1)
    ),
]


@pytest.mark.slurm
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing_in_any_script(tmp_path):
    for number, keys in enumerate(EVERY_KIND):
        for kind, folder in (("relative", ""), ("absolute", "/jobs/of mine/")):
            path = tmp_path / f"{number}-{kind}.sbatch"
            path.write_text(script(job(**keys), job_file=f"{folder}job.yaml"))
    goldens = [str(ROOT / "slurm" / f"{name}.sbatch") for name in GOLDENS]
    scripts = sorted(str(path) for path in tmp_path.iterdir())
    assert len(scripts) == 2 * len(EVERY_KIND)
    done = ran(["shellcheck", *scripts, *goldens])
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
