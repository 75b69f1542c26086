"""Which variables of `env` a process has from its start, and how a job without GPUs sees none."""

import pytest

from clustertrain.job.file import parse_job
from clustertrain.job.start_environment import driver_environment, start_environment, without_gpus

FUNCTION = "name: a\nfunction: m:f\ndata: {d: {uri: d}}\n"
SCRIPT = "name: a\nscript: t.py\n"
ENV = """env:
  LD_PRELOAD: /opt/libjemalloc.so
  OMP_NUM_THREADS: "4"
  PYTHONHASHSEED: "0"
  NCCL_DEBUG: WARN
"""


def test_a_worker_starts_with_what_its_libraries_read():
    job = parse_job(FUNCTION + ENV, "job.yaml")
    assert start_environment(job) == driver_environment(job) == job.env


@pytest.mark.parametrize(
    "name",
    [
        *("PYTHONPATH", "PYTHONHOME", "PYTHONWARNINGS", "PATH", "RAY_BACKEND_LOG_LEVEL"),
        *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    ],
)
def test_what_would_change_ray_itself_is_set_later(name):
    assert start_environment(parse_job(FUNCTION + f"env: {{{name}: x}}\n", "job.yaml")) == {}


def test_ray_replaces_a_plain_reference():
    env = {"LD_LIBRARY_PATH": "${CONDA_PREFIX}/lib:${LD_LIBRARY_PATH}"}
    assert start_environment(parse_job(f"{FUNCTION}env: {env}\n", "job.yaml")) == env


@pytest.mark.parametrize("value", ["a$$b", "$${A}", "${A:-b}", "${a}", "${CLUSTERTRAIN_DATA_D}/lib"])
def test_a_value_that_ray_would_expand_or_that_only_the_worker_knows_is_set_later(value):
    assert start_environment(parse_job(FUNCTION + f"env: {{LD_LIBRARY_PATH: '{value}'}}\n", "job.yaml")) == {}


def test_only_the_process_of_a_script_gets_its_libraries():
    job = parse_job(SCRIPT + ENV, "job.yaml")
    assert start_environment(job) == {}
    assert "LD_PRELOAD" not in driver_environment(job)
    assert driver_environment(job)["OMP_NUM_THREADS"] == "4"


def test_a_job_without_gpus_sees_none_unless_its_env_names_some():
    text = "name: a\nfunction: m:f\nresources: {{gpus_per_worker: {}}}\n{}"
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    assert without_gpus(parse_job(text.format(0, ""), "job.yaml")) == hidden
    assert without_gpus(parse_job(text.format(1, ""), "job.yaml")) == {}
    given = parse_job(text.format(0, "env: {CUDA_VISIBLE_DEVICES: '0'}"), "job.yaml")
    assert without_gpus(given) == {"HIP_VISIBLE_DEVICES": ""}
