"""The submitter's pod and a head that is lost, with a client in place of Ray's."""

import asyncio
from types import SimpleNamespace

import pytest
from aiohttp import ServerDisconnectedError

from clustertrain.launchers.kubernetes.in_pod import submitter

pytestmark = pytest.mark.timeout(20)


class Head:
    """Sends its log, and then nothing: the connection stays."""

    log = ("one\n", "two\n")

    async def tail_job_logs(self, job_id):
        for text in self.log:
            yield text
        await asyncio.Event().wait()


def test_a_head_that_is_silent_is_asked_again_and_its_log_is_printed_once(monkeypatch, capsys):
    monkeypatch.setattr(submitter, "SILENT_S", 0.2)
    following, head = submitter._Following("a"), Head()
    asyncio.run(following.follow(head, 1))
    head.log = (*head.log, "three\n")
    asyncio.run(following.follow(head, 1))
    assert capsys.readouterr().out == "one\ntwo\nthree\n"


def test_the_log_of_another_start_is_printed_from_its_begin(monkeypatch, capsys):
    monkeypatch.setattr(submitter, "SILENT_S", 0.2)
    following = submitter._Following("a")
    for start in (1, 2):
        asyncio.run(following.follow(Head(), start))
    assert capsys.readouterr().out == "one\ntwo\n" * 2


@pytest.mark.parametrize("error", [ConnectionRefusedError, RuntimeError, ServerDisconnectedError])
def test_a_connection_that_breaks_does_not_end_the_submitter(monkeypatch, capsys, error):
    answers = iter([error("gone")])

    def is_over(*arguments):
        for each in answers:
            raise each
        return True

    monkeypatch.setattr(submitter, "_is_over", is_over)
    monkeypatch.setattr(submitter, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setenv("RAY_JOB_SUBMISSION_ID", "a")
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", "head:8265")
    assert submitter.main("true") == 0
    assert "http://head:8265 does not answer; trying again" in capsys.readouterr().out
