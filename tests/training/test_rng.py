import io
import random
import struct

import numpy as np
import torch

from clustertrain.training.ranks.rng import (
    pack_rng,
    private_rng,
    restore_rng,
    rng_by_name,
    seed_all,
)

CPU = torch.device("cpu")


def draw():
    return (random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.randn(2).tolist())


def test_a_packed_state_continues_after_a_file_with_weights_only():
    seed_all(7, rank=1)
    draw()  # an odd number of gauss() leaves one cached in each generator
    file = io.BytesIO()
    torch.save(pack_rng(CPU), file)
    expected = [draw(), draw()]
    file.seek(0)
    restore_rng(torch.load(file, weights_only=True), CPU)
    assert [draw(), draw()] == expected


def test_seeds_differ_between_ranks_and_rank_0_has_the_users_own():
    drawn = []
    for rank in (0, 1, 2, 0):
        seed_all(5, rank)
        drawn.append(draw())
    assert drawn[0] == drawn[3] and len({str(d) for d in drawn}) == 3
    torch.manual_seed(5)
    assert torch.randn(2).tolist() == drawn[0][-1]


def test_the_states_are_those_of_pythons_and_numpys_own_functions():
    for change in (lambda: None, draw, lambda: np.random.seed(7), np.random.randn):
        change()
        expected = own_states()
        assert packed_states() == expected
        with private_rng(3):
            draw()  # leaves a Gaussian number in each generator
        assert own_states() == packed_states() == expected


def own_states():
    _, words_of_python, gauss = random.getstate()
    _, words, *rest = np.random.get_state()
    of_python = [*words_of_python, gauss is not None, gauss or 0.0]
    return [*of_python, *words.tolist(), *rest, *torch.get_rng_state().tolist()]


def packed_states():
    python, numpy, of_torch, _ = rng_by_name(pack_rng(CPU)).values()
    packed = bytes([*python.tolist(), *numpy.tolist()])
    return [*struct.unpack("<625I?d624IIId", packed), *of_torch.tolist()]
