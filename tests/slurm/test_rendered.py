"""A real sbatch reads the scripts as they are meant: every value whole, and every golden accepted."""

from pathlib import Path

import pytest

from clustertrain.job.model import Job
from support.commands import Done, ran
from support.sbatch_script import script

ROOT = Path(__file__).parents[2]
GOLDENS = sorted(path.name for path in (ROOT / "slurm").glob("*.sbatch"))
# Every character that the model lets into a raw option, and so into any #SBATCH line.
COMMENT = "!%&()*+,./09:;<=>?@AZ[]^_az{|}~-"


def said(cluster, *argv: str, **more) -> Done:
    return ran(argv, env=cluster.environment, cwd=ROOT, timeout=60, **more)


@pytest.mark.parametrize("name", GOLDENS)
def test_sbatch_takes_every_script_of_the_repository(cluster, name):
    done = said(cluster, "sbatch", "--test-only", f"slurm/{name}")
    assert " to start at " in done.stderr
    assert done.returncode == 0


@pytest.fixture
def shown(cluster, tmp_path):
    """Submits a job that is held; returns what SLURM knows of it."""

    def submit(slurm, **resources):
        slurm = slurm | {"output": str(tmp_path), "options": ["--hold", f"--comment={COMMENT}"]}
        keys = {"name": "a", "function": "m:f", "resources": resources, "slurm": slurm}
        rendered = script(Job.model_validate(keys), job_file="a b/job.yaml", python="python")
        done = said(cluster, "sbatch", "--parsable", "--export=ALL", input=rendered)
        assert (done.returncode, done.stderr) == (0, "")
        return said(cluster, "scontrol", "show", "job", "-o", done.stdout.strip()).stdout

    return submit


def test_every_value_arrives_whole(shown, tmp_path):
    line = shown(
        {"job_name": "a.B_0@+=-", "time_limit": "1d1h1m1s", "dependency": "singleton", "partition": "gpu"},
        workers=[2, 4],
        nodes=[1, 2],
        cpus_per_worker=1.5,
        gpus_per_worker=1,
        memory_per_worker="100Mi",
    )
    for field in (
        f"Comment={COMMENT}",
        "JobName=a.B_0@+=-",
        "TimeLimit=1-01:02:00",  # SLURM counts minutes
        "Dependency=singleton",
        "Partition=gpu",
        "NumNodes=1-2",
        "CPUs/Task=3",
        "MinMemoryNode=2248M",
        "TresPerNode=gres:gpu:2",
        "Requeue=1",
        f"StdOut={tmp_path}/a.B_0@+=--",
    ):
        assert f" {field}" in line


def test_memory_per_cpu_gpus_per_node_and_no_requeue_arrive(shown):
    slurm = {"memory_as": "mem-per-cpu", "gpus_as": "gpus-per-node", "exclusive": True, "requeue": False}
    line = shown(slurm, workers=2, gpus_per_worker=1, memory_per_worker="100Mi")
    assert " MinMemoryCPU=1124M" in line  # (2 × 100 + 2048) / 2
    assert " TresPerNode=gres:gpu:2" in line
    assert " OverSubscribe=NO" in line
    assert " Requeue=0 " in line
