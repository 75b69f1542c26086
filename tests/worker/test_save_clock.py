"""The clock of `checkpoint.every: auto`."""

from clustertrain.run.save_interval import best_interval_s, first_interval_s
from clustertrain.worker.auto_save import AutoSave


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
    auto.started()
    assert not auto.is_due()
