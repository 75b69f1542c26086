"""What this machine has room for, and what `clustertrain run` does where nothing starts."""

import os
import re

import pytest

from clustertrain.errors import ClusterError
from clustertrain.launchers.known_runs import known_runs
from clustertrain.launchers.local.run import run_local
from clustertrain.launchers.one_host import driver_environment, world_sizes_here
from clustertrain.node.gpus import gpu_count
from clustertrain.observe.screen import open_screen
from clustertrain.run_files.admission import Options
from clustertrain.run_files.folder.run_dir import RunDir
from support.small_job import job

pytestmark = pytest.mark.slow

__all__ = ["job"]


def test_too_few_cpus_are_an_arithmetic(job, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    on_a_machine(monkeypatch, cpus=2, gpus=0)
    with pytest.raises(ClusterError) as caught:
        run_local(job(resources={"workers": 5}), Options(), open_screen(), owns_process=True)
    assert known_runs() == ([], [])
    assert "5 workers × 1 CPUs = 5 CPUs, and this machine has 2" in str(caught.value)
    assert "cpus_per_worker to 0.4" in str(caught.value)
    assert RunDir.newest(job().storage.uri, "a").attempts() == []


def test_temporary_files_of_a_run_are_below_its_private_folder(job, monkeypatch, tmp_path):
    """They go with it. A place that the user chose stays, and so does what torch.compile finds again."""
    monkeypatch.setenv("RAY_ADDRESS", "auto")  # no token is written
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)

    def temporary_files_of(n, tmpdir, **sections):
        monkeypatch.delenv("TMPDIR", raising=False)
        if tmpdir:
            monkeypatch.setenv("TMPDIR", str(tmpdir))
        (folder := tmp_path / f"ct-{n}").mkdir()
        environment = driver_environment(job(**sections).scratch, folder)
        return environment.get("TMPDIR"), environment.get("TORCHINDUCTOR_CACHE_DIR")

    kept = f"{tmp_path}/torchinductor_{os.getuid()}"
    assert temporary_files_of(1, None) == (f"{tmp_path}/ct-1/tmp", kept)
    assert temporary_files_of(2, tmp_path) == (f"{tmp_path}/ct-2/tmp", kept)
    assert (tmp_path / "ct-2" / "tmp").stat().st_mode & 0o777 == 0o700
    assert temporary_files_of(3, tmp_path / "too-long-for-ray") == (f"{tmp_path}/too-long-for-ray", None)
    assert temporary_files_of(4, tmp_path, scratch="TMPDIR") == (str(tmp_path), None)


@pytest.mark.parametrize(
    ("files", "chosen", "expected"),
    [
        (["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"], None, 2),
        (["nvidia0", "nvidia1"], "1", 1),
        (["nvidia0", "nvidia1"], "0,1,2", 2),
        (["nvidia0", "nvidia1"], "1,-1,0", 1),
        (["nvidia0", "nvidia1"], "", 0),
        (["nvidia0"], "MIG-a,MIG-b", 2),
        (["null"], None, None),
        (["null"], "0,1", 2),
    ],
)
def test_gpus_are_counted_without_torch(monkeypatch, tmp_path, files, chosen, expected):
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr("clustertrain.node.gpus._DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert gpu_count() == expected


def on_a_machine(monkeypatch, cpus, gpus):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)))
    monkeypatch.setattr("clustertrain.launchers.one_host.gpu_count", lambda: gpus)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize(("cpus", "workers", "each"), [(2, 3, 1), (16, 6, 4), (2, 1, 4)])
def test_what_is_advised_fits(job, monkeypatch, cpus, workers, each):
    on_a_machine(monkeypatch, cpus=cpus, gpus=0)
    with pytest.raises(ClusterError) as caught:
        world_sizes_here(job(resources={"workers": workers, "cpus_per_worker": each}))
    advised = re.findall(r"resources\.(\w+) to ([\d.]+)", str(caught.value))
    assert len(advised) == (2 if each <= cpus else 1)
    for key, value in advised:
        fits = {"workers": workers, "cpus_per_worker": each, key: float(value)}
        assert world_sizes_here(job(resources=fits)) == [fits["workers"]]


def test_a_range_of_workers_takes_what_fits(job, monkeypatch):
    on_a_machine(monkeypatch, cpus=3, gpus=0)
    divided = job(resources={"workers": [1, 8]}, train={"epochs": 2, "global_batch_size": 8})
    assert world_sizes_here(divided) == [1, 2], "8 samples divide by 1, 2, 4 and 8; 3 CPUs hold two of these"
    on_a_machine(monkeypatch, cpus=7, gpus=0)
    fractions = job(resources={"workers": 25, "cpus_per_worker": 0.28})
    assert world_sizes_here(fractions) == [25], "they add up to a whole"
    elastic = job(resources={"workers": [2, 8], "gpus_per_worker": 1})
    on_a_machine(monkeypatch, cpus=64, gpus=4)
    assert world_sizes_here(elastic) == [2, 3, 4]
    on_a_machine(monkeypatch, cpus=64, gpus=None)
    assert world_sizes_here(elastic)[-1] == 8, "torch counts them"
    on_a_machine(monkeypatch, cpus=64, gpus=1)
    with pytest.raises(ClusterError, match=r"2 workers × 1 GPUs = 2 GPUs, and this process may use 1 "):
        world_sizes_here(elastic)
    on_a_machine(monkeypatch, cpus=64, gpus=0)
    with pytest.raises(ClusterError, match=r"(?s)may use 0 .*Set resources\.gpus_per_worker to at most 0"):
        world_sizes_here(elastic)
