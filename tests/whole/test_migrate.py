"""Scripts of Lightning, Accelerate, Hydra and Transformers, unchanged.

docs/guides/port.md shows these job files.
"""

import json
import re

import pytest

CHECKPOINTS = "${CLUSTERTRAIN_CHECKPOINT_DIR}"
JOBS = {
    "lightning": {
        "args": ["--devices=2", f"--dir={CHECKPOINTS}", "--epochs=1"],
        "resume_args": ["--ckpt_path=last"],
    },
    "accelerate": {
        "args": [f"--output_dir={CHECKPOINTS}", "--epochs=1"],
        "resume_args": ["--resume"],
    },
    "hydra": {
        "args": [
            *(f"dir={CHECKPOINTS}", f"hydra.run.dir={CHECKPOINTS}/.hydra/${{CLUSTERTRAIN_ATTEMPT}}"),
            *("lr=0.25", "optimizer.lr=${lr}", "epochs=1"),
        ],
        "resume_args": ["resume=true"],
    },
    "transformers": {
        "args": [
            *(f"--output_dir={CHECKPOINTS}", "--save_strategy=epoch", "--per_device_train_batch_size=4"),
            "--num_train_epochs=1",
        ],
        "env": {"HF_HUB_OFFLINE": 1},
    },
}
SAVED = {
    "hydra": ".hydra/1/.hydra/config.yaml",
    "lightning": "epoch=0-step=2.ckpt",
    "accelerate": "epoch_1/model.safetensors",
    "transformers": "checkpoint-2/model.safetensors",
}


def start(make_run, framework, epochs=1):
    """Runs the script to its end; returns the run, and what each rank printed at its end."""
    job = JOBS[framework]
    args = [arg.replace("epochs=1", f"epochs={epochs}") for arg in job["args"]]
    run = make_run(framework, script=f"migrate/train_{framework}.py", **{**job, "args": args})
    run.start().end(0, within_s=240)  # each framework takes seconds to import
    logs = [run.rank_log(rank) for rank in (0, 1)]
    return run, [json.loads(re.findall(r'\{"rank"[^}]*\}', log)[-1]) for log in logs]


def assert_trained_together(ranks, epochs):
    """Each rank trained on its half of the 16 samples, and both have the weights of the mean gradient."""
    assert [(rank["rank"], rank["world_size"]) for rank in ranks] == [(0, 2), (1, 2)]
    assert [rank["epochs"] for rank in ranks] == [epochs, epochs]
    assert [len(rank["samples"]) for rank in ranks] == [8, 8]
    assert sorted(ranks[0]["samples"] + ranks[1]["samples"]) == list(range(16))
    assert ranks[0]["weight"] == ranks[1]["weight"]


@pytest.mark.nightly  # to the kit they are scripts with torchrun's environment: test_entry_points.py
@pytest.mark.parametrize("framework", JOBS)
def test_a_script_trains_on_two_workers_saves_in_the_run_and_resumes(make_run, framework):
    run, ranks = start(make_run, framework)
    assert_trained_together(ranks, [0, 1])
    assert (run.checkpoints / SAVED[framework]).is_file()
    _, again = start(make_run, framework, epochs=2)
    assert_trained_together(again, [1, 2])
    assert again[0]["weight"] != ranks[0]["weight"]
    if framework == "hydra":
        assert [rank["lr"] for rank in ranks] == [0.25, 0.25]
        assert (run.checkpoints / ".hydra/2/.hydra/config.yaml").is_file()
