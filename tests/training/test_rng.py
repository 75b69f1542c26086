import io
import random

import numpy as np
import torch

from clustertrain.training.ranks.rng import (
    pack_rng,
    restore_rng,
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
