"""The log lines of a run on Kubernetes, read in its head's pod or in a short-lived reader pod.

A broken connection is opened again, and lines that were printed are not repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl, NoAnswer, NotFound
from clustertrain.launchers.kubernetes.observed.pod_problems import name_of, role_of
from clustertrain.launchers.kubernetes.observed.run_storage import HeadGone, RunStorage
from clustertrain.launchers.kubernetes.observed.view import POLL_S, View, read_view, warning
from clustertrain.launchers.kubernetes.render.paths import JOB_FILE
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.observe.as_json import json_line
from clustertrain.observe.logs import LogSelection


def log_lines(job: Job, selection: LogSelection, *, follow: bool) -> Iterator[str]:
    """The log lines, oldest first.

    With `follow` they continue until the run is over, through every attempt unless one was selected. Before
    the first attempt they are the state of the run and the output of the submitter's pod.

    Raises:
        JobError: there is no such attempt or log.
        ClusterError: kubectl failed, or the cluster refused a request.
    """
    kubectl = Kubectl.of(job.section(Kubernetes))
    told: Callable[[str], str] = json_line if selection.as_json else str  # those of a pod are objects already
    shown, printed = _Shown(told), ""
    while True:
        try:
            view = read_view(job, kubectl)
        except NoAnswer as error:
            if not follow:
                raise
            if (line := warning(error)) != printed:
                yield told(line)
            printed = line
            time.sleep(POLL_S)
            continue
        newest = view.stored.attempt if view.stored is not None else None
        attempt = newest if selection.attempt is None else selection.attempt
        if attempt is not None and attempt > shown.complete:
            yield from shown.more(
                attempt, _of_attempt(view, kubectl, replace(selection, attempt=attempt), follow)
            )
            if selection.attempt is not None and shown.complete:
                return
            if follow:  # the view is older than these lines
                if shown.complete < attempt:
                    time.sleep(POLL_S)
                continue
        is_shown = _is_shown(view, attempt)
        line = view.standing.name if is_shown else view.standing.line
        if line != printed and (not is_shown or (follow and view.standing.over)):
            printed = line
            yield told(printed)
            if attempt is None:
                yield from map(told, _of_submitter(view, kubectl))
        if view.standing.over or (not follow and attempt in (None, shown.complete)):
            return
        time.sleep(POLL_S)


def _is_shown(view: View, attempt: int | None) -> bool:
    """Whether the lines of the attempt show the state of the run."""
    return attempt is not None and (view.standing.of_result or view.standing.state in ("staging", "running"))


class _Shown:
    """The last attempt that was printed completely, and how many lines of each attempt were printed."""

    def __init__(self, told: Callable[[str], str]) -> None:
        self._told = told
        self.complete = 0
        self._lines: dict[int, int] = {}

    def more(self, attempt: int, lines: Iterator[str]) -> Iterator[str]:
        try:
            for line in islice(lines, self._lines.get(attempt, 0), None):
                self._lines[attempt] = self._lines.get(attempt, 0) + 1
                yield line
        except (NoAnswer, NotFound, HeadGone) as broken:
            yield self._told(f"-- {str(broken).splitlines()[0]}; reconnecting")
        else:
            self.complete = attempt


def _of_attempt(view: View, kubectl: Kubectl, selection: LogSelection, follow: bool) -> Iterator[str]:
    head = view.observed.head
    flags = [*_flags(selection), *(["--follow"] if follow and head is not None else [])]
    yield from RunStorage(view.job, kubectl, head).lines("logs", JOB_FILE, *flags)
    if head is None and follow and view.stored is not None and not view.stored.over:
        raise HeadGone("the head's pod does not run, and the attempt has not ended")


def _flags(selection: LogSelection) -> list[str]:
    values = {"--attempt": selection.attempt, "--rank": selection.rank, "--node": selection.node}
    flags = [word for flag, value in values.items() if value is not None for word in (flag, str(value))]
    chosen = {"--driver": selection.driver, "--json": selection.as_json}
    return [*flags, *(flag for flag, is_set in chosen.items() if is_set)]


def _of_submitter(view: View, kubectl: Kubectl) -> Iterator[str]:
    """The output of the submitter's pod, if it has started."""
    started = ("Running", "Succeeded", "Failed")
    for pod in view.observed.pods:
        if role_of(pod) == "submitter" and pod.get("status", {}).get("phase") in started:
            yield from kubectl("logs", name_of(pod)).stdout.splitlines()
