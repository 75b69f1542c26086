"""What ranks are asked for: saves by the clock of `checkpoint.every: auto`, stops and saves by request."""

import time

from clustertrain.node.waiting import wait_until
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.requests import ResizeRequest, SaveRequest, StopRequest
from clustertrain.run_files.save_interval import best_interval_s, first_interval_s
from clustertrain.session import Session
from clustertrain.storage.record_file import encoded
from clustertrain.training.ranks.host import Requests
from clustertrain.training.settings import SaveEvery
from clustertrain.worker import stop_requests as requests
from clustertrain.worker.auto_save import AutoSave
from clustertrain.worker.stop_requests import RequestPoller, wait_for_all_s
from support.fault_proxy import FaultProxy, stall
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


def taken(poller):
    """What `take` gives once it gives something."""
    return wait_until(lambda: next(filter(any, [poller.take()]), None), 20, 0.02)


def test_one_start_of_the_workers_is_asked_to_return_for_a_larger_one(attempt):
    starts = attempt.restart(0), attempt.restart(1)
    with RequestPoller(attempt, starts[0]) as first, RequestPoller(attempt, starts[1]) as next_:
        attempt.restart(0).resize.write(ResizeRequest(4))
        assert taken(first) == Requests(stop=True)
        assert first.is_resize and not next_.is_resize
        assert next_.take() == Requests()
        attempt.stop.write(StopRequest("user"))
        assert taken(next_) == Requests(stop=True)
        assert not next_.is_resize


def test_ranks_that_find_a_stop_at_different_times_signal_their_scripts_together(attempt):
    assert wait_for_all_s(attempt) == 0
    within_s = 3.0 if attempt.run.is_spooled else 1.0
    for seconds_ago, least, most in ((0.0, 0.2, within_s), (10.0, 0.0, 0.0), (-1000.0, 0.2, within_s)):
        now = time.time()
        attempt.stop.write(StopRequest("user", time=now - seconds_ago))  # -1000: of another clock
        waits_s = wait_for_all_s(attempt)
        assert least - (time.time() - now) <= waits_s <= most


def test_a_request_of_an_earlier_start_is_old_news(attempt):
    attempt.save.write(SaveRequest(time=1.0))
    with RequestPoller(attempt) as poller:
        attempt.stop.write(StopRequest("user"))
        assert taken(poller) == Requests(stop=True)
        assert poller.take() == Requests(stop=True)  # a stop stays


def test_a_request_since_the_claim_of_this_start_is_served_once(attempt):
    attempt.save.write(SaveRequest(time=2.0))
    with RequestPoller(attempt, claimed_s=1.5) as poller:
        assert poller.take() == Requests(save=True)
        attempt.stop.write(StopRequest("user"))
        assert taken(poller) == Requests(stop=True)


def test_a_stop_from_another_machine_arrives_through_s3(moto_s3, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(requests, "POLL_S_ON_S3", 0.2)
    attempt = RunDir.newest(moto_s3.location("runs"), "digits").attempt(1)
    with RequestPoller(attempt) as poller:
        attempt.run.store.write_atomic(
            attempt.stop.key, encoded(StopRequest("user"))
        )  # not by this machine's disk
        assert taken(poller) == Requests(stop=True)


def test_a_hanging_storage_delays_nothing_and_local_requests_still_arrive(moto_s3, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with FaultProxy(moto_s3.endpoint) as proxy:
        run = RunDir.newest(moto_s3.through(proxy.endpoint, retry_s=0.2).location("runs"), "digits")
        attempt = run.attempt(1)
        with RequestPoller(attempt) as poller:
            proxy.down()
            began = time.monotonic()
            for _ in range(1000):
                assert poller.take() == Requests()
            assert time.monotonic() - began < 1
            run.spool.write_atomic(f"{attempt.key}/stop", b"{}")
            assert taken(poller) == Requests(stop=True)
            proxy.up()
            proxy.script(stall(), for_s=1)
