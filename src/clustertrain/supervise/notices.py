"""`notify`: one POST with JSON at each restart of the workers and at the end of an attempt.

It never delays or ends a training: each POST is made in a thread of its own, and what goes wrong is one
warning. No text contains the URL, which may be a secret.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from clustertrain.job.references import with_values
from clustertrain.run.folder import Attempt
from clustertrain.run.records import Result
from clustertrain.run.streams.events import EventLog

TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Notice:
    """The JSON of a POST; docs/failures.md has it.

    Attributes:
        text: one to four lines for people; Slack shows it.
        event: "restart", "failed", or "ended" for every other end.
        state, cause: a row of states.STATES; empty at a restart.
    """

    text: str
    event: str
    run: str
    uri: str
    attempt: int
    step: int | None
    state: str = ""
    cause: str = ""
    exit_code: int | None = None
    format_version: int = 1


class Notices:
    """Those of one attempt. Without a URL, which may refer to variables, nothing is sent."""

    def __init__(self, attempt: Attempt, url: str | None) -> None:
        self._url = "" if url is None else with_values({"notify": url}, os.environ)["notify"]
        self._attempt = attempt
        self._threads: list[threading.Thread] = []
        self._has_warned = False

    def restarts(self, records: Iterable[dict[str, Any]]) -> None:
        """Send a notice for each restart among these events."""
        for record in records:
            if record["kind"] == "restarting":
                what = f"restart {record.get('restart')} of {record.get('of')} in a row"
                self._send("restart", f"{what}\n{record.get('text') or ''}", record.get("step"))

    def ended(self, result: Result) -> None:
        """Send the notice of the end, and wait for the answers."""
        event = "failed" if result.state == "failed" else "ended"
        self._send(event, f"{result.state} ({result.cause})\n{result.text}", result.step, result)
        ends_s = time.monotonic() + TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, ends_s - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            self._warn(f"no answer within {TIMEOUT_S:g} s")

    def _send(self, event: str, what: str, step: int | None, result: Result | None = None) -> None:
        if not self._url:
            return
        run, n = self._attempt.run, self._attempt.n
        at_step = "" if step is None else f", step {step}"
        text = f"{run.name}, attempt {n}{at_step}: {what}".strip()
        notice = Notice(text, event, run.name, run.uri, n, step)
        if result is not None:
            notice = replace(notice, state=result.state, cause=result.cause, exit_code=result.exit_code)
        thread = threading.Thread(target=self._post, args=(notice,), name="notify", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _post(self, notice: Notice) -> None:
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        from clustertrain.staging.http import connections_to

        try:
            answer = connections_to(self._url).request(
                "POST",
                self._url,
                body=json.dumps(asdict(notice)),
                headers={"Content-Type": "application/json"},
                timeout=Timeout(total=TIMEOUT_S),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except (HTTPError, OSError, ValueError) as error:
            cause = error.__cause__ or error
            self._warn(getattr(cause, "strerror", None) or type(error).__name__)
            return
        answer.close()
        if not 200 <= answer.status < 300:
            self._warn(f"the server answered with status {answer.status}")

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            text = f"notify: a notice was not delivered: {why}. The training is not affected."
            EventLog(self._attempt.launcher_events).write("warning", text=text)
