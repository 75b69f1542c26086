"""Which variables a process has from its start, and how a job without GPUs sees none."""

import pytest

from clustertrain.job.file import parse_job
from clustertrain.job.start_environment import (
    driver_environment,
    hash_seed,
    python_environment,
    start_environment,
    without_gpus,
)

FUNCTION = "name: a\nfunction: m:f\ndata: {d: {uri: d}}\n"
SCRIPT = "name: a\nscript: t.py\n"
TASK = "name: a\ntask: m:T\ntrain: {{epochs: 1, batch_size: 1, seed: {}}}\n"
SEED_0 = {"PYTHONHASHSEED": "0"}
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
    assert start_environment(parse_job(FUNCTION + f"env: {{{name}: x}}\n", "job.yaml")) == SEED_0


def test_ray_replaces_a_plain_reference():
    env = {"LD_LIBRARY_PATH": "${CONDA_PREFIX}/lib:${LD_LIBRARY_PATH}"}
    assert start_environment(parse_job(f"{FUNCTION}env: {env}\n", "job.yaml")) == SEED_0 | env


@pytest.mark.parametrize("value", ["a$$b", "$${A}", "${A:-b}", "${a}", "${CLUSTERTRAIN_DATA_D}/lib"])
def test_a_value_that_ray_would_expand_or_that_only_the_worker_knows_is_set_later(value):
    job = parse_job(FUNCTION + f"env: {{LD_LIBRARY_PATH: '{value}'}}\n", "job.yaml")
    assert start_environment(job) == SEED_0


def test_only_the_process_of_a_script_gets_its_libraries():
    job = parse_job(SCRIPT + ENV, "job.yaml")
    assert start_environment(job) == SEED_0
    assert "LD_PRELOAD" not in driver_environment(job)
    assert driver_environment(job)["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize(
    ("text", "seed"),
    [
        (FUNCTION, "0"),
        (SCRIPT, "0"),
        (SCRIPT + "env: {PYTHONHASHSEED: '7'}", "7"),
        (TASK.format(5), "5"),
        (TASK.format(2**32 + 5), "5"),
        (TASK.format(5) + "env: {PYTHONHASHSEED: random}", "random"),
        (TASK.format(5) + "env: {PYTHONHASHSEED: '${SEED}'}", "5"),  # until its value is known
    ],
)
def test_every_process_with_the_users_code_has_one_hash_seed(text, seed):
    job = parse_job(text, "job.yaml")
    assert hash_seed(job) == {"PYTHONHASHSEED": seed}
    if "$" not in text:
        assert start_environment(job) == python_environment(job) == hash_seed(job)


def test_a_job_without_gpus_sees_none_unless_its_env_names_some():
    text = "name: a\nfunction: m:f\nresources: {{gpus_per_worker: {}}}\n{}"
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    assert without_gpus(parse_job(text.format(0, ""), "job.yaml")) == hidden
    assert without_gpus(parse_job(text.format(1, ""), "job.yaml")) == {}
    given = parse_job(text.format(0, "env: {CUDA_VISIBLE_DEVICES: '0'}"), "job.yaml")
    assert without_gpus(given) == {"HIP_VISIBLE_DEVICES": ""}
