"""A run on WebDataset shards through the real program: a rank is killed, with DDP and with FSDP."""

import io
import json
import tarfile

import pytest
from safetensors.torch import load_file

from clustertrain.checkpoints.export import export
from clustertrain.run.streams.history import curve

pytest.importorskip("webdataset", reason="the extra webdataset is not installed")


@pytest.fixture
def points(tmp_path):
    """A folder of 6 shards with 9 samples each."""
    folder = tmp_path / "points"
    folder.mkdir()
    for shard in range(6):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for i in range(9 * shard, 9 * shard + 9):
                text = json.dumps([(i * k) % 7 - 3 for k in range(1, 7)]).encode()
                member = tarfile.TarInfo(f"{i:04d}.json")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text))
    return folder


@pytest.mark.nightly  # tests/training/test_shards.py has the split and the resume, test_fsdp_runs.py FSDP
@pytest.mark.timeout(900)
def test_a_killed_rank_costs_its_last_steps_with_ddp_and_fsdp(make_run, points, tmp_path):
    def weights_of(name, **sections):
        run = make_run(
            name,
            task="sharded:Sharded",
            data={"points": {"uri": str(points)}},
            checkpoint={"every": {"steps": 4}},
            **sections,
        )
        output = run.start().end(0)
        steps = [record["step"] for record in curve(run.run_dir) if record["kind"] == "train"]
        assert steps == list(range(1, 22))
        path, _ = export(run.run_dir.checkpoints, run.result.checkpoint, tmp_path / f"{name}.safetensors")
        return output, load_file(path)

    def killed(name):
        return {"fault": "kill", "rank": 1, "at_call": 12, "marker": str(tmp_path / f"struck-{name}")}

    train = {"epochs": 3, "batch_size": 4, "log_every": 1}
    _, expected = weights_of("whole", train=train)
    output, found = weights_of("killed", train=train, args=killed("killed"))
    assert "SIGKILL" in output and "resuming after step 9 " in output
    assert all(found[name].equal(weight) for name, weight in expected.items())
    output, found = weights_of("divided", train=train | {"strategy": "fsdp"}, args=killed("divided"))
    assert "FSDP (full, 2 ranks): " in output
    assert "SIGKILL" in output and "resuming after step 10 " in output  # of two discarded passes FSDP has one
    for name, weight in expected.items():
        assert found[name].numpy() == pytest.approx(weight.numpy(), abs=1e-5), name
