"""The clock of `checkpoint.every: auto`."""

from clustertrain.run.save_interval import best_interval_s, first_interval_s
from clustertrain.session import Session
from clustertrain.training.ranks.host import Requests
from clustertrain.training.settings import SaveEvery
from clustertrain.worker.auto_save import AutoSave
from training.conftest import ranks

__all__ = ["ranks"]


def test_the_interval_is_planned_again_after_each_save_and_one_slow_save_does_not_change_it():
    auto = AutoSave(mtbf_s=3600.0)
    assert auto.interval_s == first_interval_s(3600.0) and not auto.is_due()
    auto.saved(blocking_s=2.0, write_s=3.0)
    assert auto.interval_s == best_interval_s(2.0, 3600.0)
    auto.saved(blocking_s=2.0, write_s=3.0)
    auto.saved(blocking_s=500.0, write_s=501.0)  # it waited for the one before
    assert auto.interval_s == 501.0  # the next save would wait as well
    auto.saved(blocking_s=2.0, write_s=3.0)
    assert auto.interval_s == best_interval_s(2.0, 3600.0)
    auto._since_s -= auto.interval_s
    assert auto.is_due()
    auto._since_s -= auto.interval_s
    auto.started()
    assert not auto.is_due()


class OnTheClock:
    """The part of a run that a session uses."""

    def __init__(self) -> None:
        self.auto = AutoSave(mtbf_s=3600.0)
        self.auto._since_s -= self.auto.interval_s

    def phase(self, name, step):
        pass

    def requests(self):
        return Requests(save_timer=self.auto.is_due())


def steps_to_save(rank_info):
    run = OnTheClock()
    session = Session(run=run, rank_info=rank_info, data={}, args={}, save_every=SaveEvery())
    found = []
    for step in range(1, 6):
        if session.step_done(step).save:
            found.append(step)
            run.auto.started()  # as a save does
    session.end()
    return found


def test_the_ranks_of_a_function_save_once_when_it_is_over(ranks):
    """They ask again before they save."""
    assert ranks(2).results(steps_to_save) == [[2], [2]]
