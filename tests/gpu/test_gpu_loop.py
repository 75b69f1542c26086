"""On NVIDIA GPUs: NCCL over all of them. Needs only torch, numpy and pytest."""

import multiprocessing
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.settings import Compile, SaveEvery, TrainSettings
from gpu.suite import needs_a_gpu, needs_cuda
from training.tasks import Classify, run_task, same

pytestmark = [pytest.mark.gpu, needs_a_gpu]
SETTINGS = TrainSettings(
    epochs=2, batch_size=4, seed=3, save_every=SaveEvery(steps=2), log_every=2, loader_workers=0
)


@pytest.mark.parametrize("precision", ["fp32", "bf16", pytest.param("fp16", marks=needs_cuda)])
def test_resume_is_bit_identical(gpu, deterministic, precision):
    settings = replace(SETTINGS, precision=precision, clip_norm=1.0)
    whole = run_task(gpu, Classify(), settings)
    resumed = run_task(gpu, Classify(), settings, whole.saves[4])
    end = whole.result.step
    assert end > 4 and same(resumed.state(end), whole.state(end))


def test_loader_processes_and_pinned_memory_give_the_same_bits(gpu, deterministic):
    here = run_task(gpu, Classify(), SETTINGS)
    there = run_task(gpu, Classify(), replace(SETTINGS, loader_workers=1))
    assert same(here.weights(), there.weights())


class Wide(Classify):
    """Long enough steps for figures that are not zero."""

    tokens_per_sample = 8


@needs_cuda
def test_the_curve_has_the_figures_of_the_gpu(gpu):
    logs = run_task(gpu, Wide(), replace(SETTINGS, precision="bf16")).logs
    lines = [log for log in logs if log["kind"] == "train"]
    assert len(lines) > 2
    for line in lines:
        assert 0 < line["compute_s"] < 10 and 0 <= line["data_wait_s"] < 10
        assert 0 < line["gpu_memory_peak_bytes"] <= torch.cuda.get_device_properties(gpu.device).total_memory
        assert line["tokens_per_s"] == 8 * line["samples_per_s"]
        assert 0 <= line.get("gpu_utilization_percent", 0) <= 100


def _nccl_rank(rank, world_size, store, answers):
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=120),
        device_id=device,
    )
    settings = replace(SETTINGS, sync_batchnorm=True, compile=None, save_every=SaveEvery())
    outcome = run_task(
        RankInfo(rank, rank, world_size, device), Classify(54 * world_size), settings, None, stop_soon
    )
    answers.put((rank, outcome.result.step, outcome.result.finished))
    dist.destroy_process_group()


def stop_soon(calls):
    return calls >= 3, False


@needs_cuda
def test_nccl_over_all_gpus_with_sync_batchnorm_and_a_stop(tmp_path):
    world_size = torch.cuda.device_count()
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    started = [
        context.Process(target=_nccl_rank, args=(rank, world_size, str(tmp_path / "store"), answers))
        for rank in range(world_size)
    ]
    for process in started:
        process.start()
    step = 3 if world_size == 1 else 4
    got = sorted(answers.get(timeout=200) for _ in started)
    assert got == [(rank, step, False) for rank in range(world_size)]
    for process in started:
        process.join(60)
        assert process.exitcode == 0


@pytest.mark.filterwarnings("ignore::UserWarning")  # the compiler's advice on number formats and GPU size
def test_a_compiled_model_resumes_bit_identical_after_a_short_batch(gpu, deterministic):
    settings = replace(SETTINGS, compile=Compile())
    whole = run_task(gpu, Classify(), settings)
    assert "head.weight" in whole.weights()
    torch.compiler.reset()  # as in a process of its own
    resumed = run_task(gpu, Classify(), settings, whole.saves[16])
    assert whole.state(16)["position"]["epoch"] == 1, "the first epoch's short batch lies before"
    assert same(resumed.weights(), whole.weights())
