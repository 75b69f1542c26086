"""`notify`: what is posted, and that no server can delay or end a run."""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from clustertrain.errors import JobError
from clustertrain.run.folder import RunDir
from clustertrain.run.records import Result
from clustertrain.run.streams.history import events_of_attempt
from clustertrain.supervise import notices
from clustertrain.supervise.notices import Notices
from small_job import job
from web import answering

__all__ = ["job"]

SECRET = "/services/T0/B0/secret"


@pytest.fixture
def hook():
    """A server that answers each POST with `status`; it holds those to /hanging until the test is over."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            """Say nothing."""

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if server.hangs:
                server.goes_on.wait()
            server.posts.append((self.path, self.headers["Content-Type"], json.loads(body)))
            self.send_response(server.status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        do_GET = do_POST  # noqa: N815  the name that the server calls

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.posts, server.status, server.hangs, server.goes_on = [], 204, False, threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}{SECRET}"
    with answering(server):
        yield server
        server.goes_on.set()


@pytest.fixture
def notices_to(tmp_path, monkeypatch):
    def make(url):
        monkeypatch.setenv("HOOK", url)
        attempt = RunDir.newest(str(tmp_path / "runs"), "digits").attempt(2)
        return attempt, Notices(attempt, "${HOOK}")

    return make


DONE = Result("done", "finished", 0, step=30)


def warnings_of(attempt):
    return [event["text"] for event in events_of_attempt(attempt) if event["kind"] == "warning"]


def test_a_restart_and_the_end_are_posted_for_people_and_programs(hook, notices_to):
    attempt, sent = notices_to(hook.url)
    restarting = {"kind": "restarting", "restart": 1, "of": 3, "step": 7, "text": "Rank 1 was killed."}
    sent.restarts([{"kind": "note", "text": "a"}, restarting])
    sent.ended(Result("failed", "error", 1, "ValueError: x", step=9))
    (path, kind, restart), (_, _, failed) = sorted(hook.posts, key=lambda post: post[2]["step"])
    common = {"run": "digits", "uri": attempt.run.uri, "attempt": 2, "format_version": 1}
    assert (path, kind) == (SECRET, "application/json")
    text = "digits, attempt 2, step 7: restart 1 of 3 in a row\nRank 1 was killed."
    assert restart == common | {
        **{"event": "restart", "step": 7, "state": "", "cause": "", "exit_code": None, "text": text}
    }
    text = "digits, attempt 2, step 9: failed (error)\nValueError: x"
    assert failed == common | {
        **{"event": "failed", "step": 9, "state": "failed", "cause": "error", "exit_code": 1, "text": text}
    }
    sent.ended(DONE)
    assert hook.posts[-1][2]["event"] == "ended"
    assert warnings_of(attempt) == []


@pytest.mark.parametrize(("status", "why"), [(500, "status 500"), (302, "status 302"), (307, "status 307")])
def test_another_answer_is_one_warning_and_a_redirect_is_not_followed(hook, notices_to, status, why):
    hook.status = status
    attempt, sent = notices_to(hook.url)
    sent.restarts([{"kind": "restarting"}])
    sent.ended(DONE)
    assert [path for path, _, _ in hook.posts] == [SECRET] * 2
    (warning,) = warnings_of(attempt)
    assert why in warning and "secret" not in warning


def test_a_hanging_server_delays_only_the_last_line(hook, notices_to, monkeypatch):
    monkeypatch.setattr(notices, "TIMEOUT_S", 0.5)
    hook.hangs = True
    attempt, sent = notices_to(hook.url)
    began_s = time.monotonic()
    sent.restarts([{"kind": "restarting"}] * 20)
    assert time.monotonic() - began_s < 0.4
    sent.ended(DONE)
    assert time.monotonic() - began_s < 3
    assert len(warnings_of(attempt)) == 1 and "secret" not in warnings_of(attempt)[0]


def test_a_server_that_is_not_there_and_an_unusable_url_are_a_warning(notices_to):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for url, why in ((f"http://127.0.0.1:{port}{SECRET}", "Connection refused"), (f"http://[{SECRET}", "")):
        attempt, sent = notices_to(url)
        attempt.launcher_events.unlink(missing_ok=True)
        sent.ended(DONE)
        (warning,) = warnings_of(attempt)
        assert why in warning and "secret" not in warning


def test_what_is_no_url_is_refused_without_showing_it(job):
    for text in ("hooks.example/T0B0", "https://hooks.example/$T0B0", "https://hooks:T0B0/"):
        with pytest.raises(JobError, match="notify") as refused:
            job(notify=text)
        assert "T0B0" not in str(refused.value)
