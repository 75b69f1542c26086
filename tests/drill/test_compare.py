"""The first difference of two runs; what is read of a script's files."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from clustertrain.checkpoints.digests import of_files
from clustertrain.drill.compare import differences
from clustertrain.drill.left import Left, _read_lines

STEPS = range(1, 7)
RUN = Left(
    curve={f"step {n}": {"loss": repr(1 / n), "lr": "0.1"} for n in STEPS},
    samples={f"epoch 0, step {n}, rank 0": {f"the sample ids of pass {n}": f"{n:x}"} for n in STEPS},
    states={"step 4": {"model.w": "float32 [2] aa", "rng_of_ranks.0.torch": "uint8 [3] bb"}},
)


def with_curve(step, **values):
    return replace(RUN, curve={**RUN.curve, f"step {step}": {**RUN.curve[f"step {step}"], **values}})


def with_state(**values):
    return replace(RUN, states={"step 4": {**RUN.states["step 4"], **values}, "step 5": {"model.w": "new"}})


@pytest.mark.parametrize(
    ("other", "where", "what"),
    [
        (with_curve(5, lr="0.2"), "step 5", "lr"),
        (
            replace(with_curve(5, lr="0.2"), states={"step 4": {**RUN.states["step 4"], "model.w": "else"}}),
            "step 4",
            "model.w",
        ),
        (replace(RUN, curve=dict([*RUN.curve.items()][:-1])), "step 6", "loss"),
        (
            replace(
                RUN,
                samples={**RUN.samples, "epoch 0, step 2, rank 0": {"the sample ids of pass 2": "ff"}},
            ),
            "epoch 0, step 2, rank 0",
            "the sample ids of pass 2",
        ),
        (with_state(**{"rng_of_ranks.0.torch": "uint8 [3] cc"}), "step 4", "rng_of_ranks.0.torch"),
    ],
)
def test_the_first_difference_is_that_of_the_earliest_step(other, where, what):
    assert differences(RUN, RUN) == ()
    found = differences(RUN, other)
    assert (found[0].where, found[0].what) == (where, what)


def test_a_run_without_a_checkpoint_in_common_differs():
    assert differences(RUN, replace(RUN, states={}))[0].found == "missing"


def test_files_are_compared_by_their_tensors(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, number in ((a, 1.0), (b, 2.0)):
        folder.mkdir()
        torch.save({"w": torch.ones(3), "at": str(folder), "steps": 7, "lr": number}, folder / "last.pt")
        save_file({"w": torch.full((2,), number, dtype=torch.bfloat16)}, folder / "model.safetensors")
        (folder / "odd.pt").write_bytes(b"no archive")
    one, two = of_files(a), of_files(b)
    assert one["last.pt"]["w"] == two["last.pt"]["w"] and one["last.pt"]["lr"] == "float 1.0"
    assert one["last.pt"].keys() == {"w", "lr"}
    assert one["model.safetensors"] != two["model.safetensors"]
    assert one["odd.pt"] == two["odd.pt"] == {}


def test_what_no_library_loads_has_nothing_to_compare(tmp_path):
    save_file({"w": torch.ones(100)}, tmp_path / "cut.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "cut.safetensors").read_bytes()[:-9])
    (tmp_path / "tokens.bin").write_bytes(b"0.")  # an opcode of pickle that finds nothing
    torch.save({"w": torch.eye(2).to_sparse()}, tmp_path / "sparse.pt")
    (tmp_path / "step=9.ckpt").mkdir()
    names = ("cut.safetensors", "sparse.pt", "tokens.bin")
    assert of_files(tmp_path) == {name: {} for name in names}


def test_a_line_is_known_by_its_epoch_and_step(job):
    found = Left()
    lines = [
        "epoch 0 step 1: mean loss 0.5",
        "val_loss=nan",
        "{'loss': '1e-05', 'epoch': '0.5'}",
        "no number",
    ]
    _read_lines(found, [*lines, "epoch 0 step 1: mean loss 0.4"], job().drill.loss)
    assert found.lost_steps == 1
    assert [(key, each["loss"]) for key, each in found.curve.items()] == [
        ("epoch 0 step 1, loss", "0.4"),
        ("2, val_loss", "nan"),
        ("epoch 0.5, loss", "1e-05"),
    ]
    named = Left()
    pattern = r"at (?P<step>\d+): cost (?P<loss>\d+)"
    _read_lines(named, ["at 7: cost 3"], job(drill={"loss": pattern}).drill.loss)
    assert named.curve == {"7, at": {"loss": "3"}}
