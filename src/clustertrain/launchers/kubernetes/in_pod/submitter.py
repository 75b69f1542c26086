"""Submits the run to Ray from a separate pod (KubeRay's K8sJobMode), and stays until Ray's job is over.

KubeRay's own command submits once and follows the log. If the head is lost, it ends, and the RayJob fails.
This program submits again to the new head, under the same id, and the run resumes. It exits with 0 whether
Ray's job succeeded or failed: KubeRay reads that from Ray, and would retry a pod that failed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from aiohttp import ClientError

_RETRY_S = 2.0
SILENT_S = 60.0  # a head whose node lost its power or network closes no connection


def main(entrypoint: str) -> int:
    job_id = os.environ["RAY_JOB_SUBMISSION_ID"]
    address = f"http://{os.environ['RAY_DASHBOARD_ADDRESS'].removeprefix('http://')}"
    following = _Following(job_id)
    printed = ""
    while True:
        try:
            if _is_over(following, address, entrypoint):
                return 0
        except (OSError, RuntimeError, ClientError) as error:  # no head, a starting one, or a lost one
            message = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            if message != printed:
                print(f"Ray's head at {address} does not answer; trying again. {message}", flush=True)
            printed = message
        time.sleep(_RETRY_S)


def _is_over(following: _Following, address: str, entrypoint: str) -> bool:
    """Submit the job if this head does not have it, print its log, and return whether the job is over."""
    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(address)
    info = {each.submission_id: each for each in client.list_jobs()}.get(following.job_id)
    if info is None:
        client.submit_job(entrypoint=entrypoint, submission_id=following.job_id)
        print(f"submitted to Ray's head at {address}: {entrypoint}", flush=True)
        info = client.get_job_info(following.job_id)
    if not info.status.is_terminal():
        asyncio.run(following.follow(client, info.start_time))
        info = client.get_job_info(following.job_id)
    if not info.status.is_terminal():
        return False
    print(f"Ray's job is over: {info.status}", flush=True)
    return True


class _Following:
    """Prints a job's log once, even if the connection breaks and Ray sends the log from its start again."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self._of_start: object = None
        self._printed = 0

    async def follow(self, client: Any, start: object) -> None:
        """Print until the log ends, or until nothing has come for a minute: the head may be gone by then."""
        if start != self._of_start:
            self._of_start, self._printed = start, 0
        skip = self._printed
        texts = client.tail_job_logs(self.job_id)
        while True:
            try:
                text = await asyncio.wait_for(anext(texts), SILENT_S)
            except (StopAsyncIteration, TimeoutError):
                return
            new = text[skip:]
            skip = max(0, skip - len(text))
            self._printed += len(new)
            print(new, end="", flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
