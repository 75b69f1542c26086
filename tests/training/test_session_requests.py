"""Requests to a function with its own loop, on two ranks."""

import pytest
import torch
import torch.distributed as dist

from clustertrain import session
from clustertrain.training.ranks.distributed import gloo_group
from clustertrain.training.ranks.host import Requests
from clustertrain.training.settings import SaveEvery


class Steps:
    """Rank 0's requests, each returned once, as by RequestPoller; rank 1's must not count."""

    def __init__(self, rank, asked):
        self.rank, self.asked, self.step = rank, dict(asked), 0

    def phase(self, name, step):
        self.step = step

    def log(self, record):
        """Not looked at."""

    def requests(self):
        wanted = self.asked.pop(self.step, (False, False)) if self.rank == 0 else (True, True)
        return Requests(*wanted)


def seen(rank_info, asked, slow_step_s):
    """The steps at which a stop or a save was returned."""
    session._SLOW_STEP_S = slow_step_s
    run = Steps(rank_info.rank, asked)
    made = session.Session(run=run, rank_info=rank_info, data={}, args={}, save_every=SaveEvery())
    returned = {step: made.step_done(step) for step in range(1, 9)}
    made.end()
    return {step: (each.stop, each.save) for step, each in returned.items() if each.stop or each.save}


SAVE, STOP = (False, True), (True, False)
TIMER = (False, False, True)  # the launcher's clock: `checkpoint.every: auto`


@pytest.mark.parametrize(
    ("slow_step_s", "expected"), [(1000.0, {2: SAVE, 4: SAVE, 6: STOP}), (0.0, {2: SAVE, 3: SAVE, 5: STOP})]
)
def test_a_request_counts_one_step_later_or_at_once_after_slow_steps(ranks, slow_step_s, expected):
    assert ranks(2).results(seen, {1: TIMER, 3: SAVE, 5: STOP}, slow_step_s) == [expected] * 2


def asked_for_a_stop(rank_info, at):
    """What `stop_requested` of a function returns after each step."""
    run = Steps(rank_info.rank, dict.fromkeys(range(at, 9), STOP))
    made = session.Session(run=run, rank_info=rank_info, data={}, args={}, save_every=SaveEvery())
    found = []
    for step in range(1, 9):
        made.log(step=step)
        found.append(made.stop_requested())
    made.end()
    return found


def test_a_stop_is_true_on_all_ranks_after_the_same_step(ranks):
    assert ranks(2).results(asked_for_a_stop, 3) == [[step >= 3 for step in range(1, 9)]] * 2


def timeouts(rank_info):
    """Of the default group of the test's ranks, and of a further one, in seconds."""
    groups = (dist.group.WORLD, gloo_group())
    cpu = torch.device("cpu")
    return [group._get_backend(cpu).options._timeout.total_seconds() for group in groups]


def test_a_further_group_waits_as_long_as_the_first(ranks):
    (default_s, further_s), _ = ranks(2).results(timeouts)
    assert further_s == default_s != 1800
