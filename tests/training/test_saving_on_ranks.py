"""A save that makes progress begins its phase again on every rank; one that stands still does not."""

import pytest
import torch

from clustertrain.training.ranks.host import SaveProgress
from clustertrain.training.saving import owned, save_on_all_ranks, wait_until_written
from training.ranks import ALONE

PROGRESS = SaveProgress(7, 0, samples_seen=0, world_size=1, metrics={}, reason="steps")


class SlowDisk:
    """A run whose writes return these numbers of bytes, then are over."""

    def __init__(self, *, before=(), after=(), saves_in_background=True):
        self.saves_in_background = saves_in_background
        self._writes = [list(before), list(after)]
        self.calls = []

    def phase(self, name, step):
        self.calls.append(name)

    def wait_for_write(self, timeout_s):
        return self._writes[0].pop(0) if self._writes[0] else None

    def save(self, state, progress):
        self.calls.append("copied")
        self._writes.pop(0)


@pytest.mark.parametrize(
    ("before", "beats"), [((), 0), ((10, 20, 30), 3), ((10, 10, 10, 20), 2), ((0, 0, 0), 0)]
)
def test_each_round_with_more_bytes_begins_the_phase_again(before, beats):
    run = SlowDisk(before=before, after=(99,))
    save_on_all_ranks(run, ALONE, {}, PROGRESS)
    assert run.calls == ["save"] * (1 + beats) + ["copied", "step"]
    assert run.wait_for_write(0) == 99, "the write in the background goes on"


def test_a_save_that_is_not_in_the_background_is_written_on_return():
    run = SlowDisk(after=(10, 20), saves_in_background=False)
    save_on_all_ranks(run, ALONE, {}, PROGRESS)
    assert run.calls == ["save", "copied", "save", "save", "step"]
    assert run.wait_for_write(0) is None


def test_the_last_write_of_a_run_is_in_its_phase():
    run = SlowDisk(before=(5, 5, 6))
    wait_until_written(run, 7)
    assert run.calls == ["save", "save", "save"]


def rounds(rank_info):
    """Only rank 0 writes; what the other rank calls meanwhile."""
    run = SlowDisk(before=(10, 20, 20, 30) if rank_info.rank == 0 else ())
    save_on_all_ranks(run, rank_info, {}, PROGRESS)
    return run.calls


def test_the_other_ranks_see_the_bytes_of_rank_0(ranks):
    assert ranks(2).results(rounds) == [["save"] * 4 + ["copied", "step"]] * 2


def is_own(restored, source):
    return {name: restored[name].data_ptr() != source[name].data_ptr() for name in source}


def test_a_function_gets_copies_of_what_it_probably_keeps():
    state = {"small": torch.ones(3), "large": torch.ones(5000)}
    assert is_own(owned(state, torch.device("cpu")), state) == {"small": True, "large": True}
    assert is_own(owned(state, torch.device("cuda", 0)), state) == {"small": True, "large": False}
