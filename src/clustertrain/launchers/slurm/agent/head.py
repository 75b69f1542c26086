"""The agent of the head node: claims the attempt, publishes the rendezvous, starts Ray and the driver, hears
SLURM's signals, writes the result where the driver cannot, and tells the batch shell how to end."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from clustertrain.errors import EXIT_CLUSTER, EXIT_DONE, ClusterError, ClusterTrainError, StorageError
from clustertrain.job.model import Job
from clustertrain.launchers.slurm.agent.mailbox import Ending, Mailbox, ending_of
from clustertrain.launchers.slurm.agent.node import Heard, Node, Start, arrive, join, ray_ended, start_ray
from clustertrain.node.network import interface_of
from clustertrain.observe.screen import Lines, Screen
from clustertrain.observe.tables import print_ending
from clustertrain.run.begin import begin, is_same_start
from clustertrain.run.events import EventLog
from clustertrain.run.folder import Attempt
from clustertrain.run.history import AttemptFollower
from clustertrain.run.rendezvous import Rendezvous, arrivals
from clustertrain.run.result import Result, ended, failed, read_result, write_result
from clustertrain.run.shipping import Shipping, send_leftovers
from clustertrain.run.states import STATES
from clustertrain.supervise.driver_process import result_of, start_driver
from clustertrain.supervise.guardian import kill_descendants
from clustertrain.supervise.process import Guarded

_POLL_S = 0.1
_LOOK_EVERY_S = 2.0  # whether a node left, or a newer attempt began
_RAY_TELLS_WITHIN_S = 3.0  # ray_start looks every half second, and its guardian then ends what is left
_ASKS_FOR_REQUEUE = ("preempted", "node_fail", "time_limit")  # "requeued" is SLURM's doing already


def serve_head(start: Start, heard: Heard, mail: Mailbox | None) -> int:
    """Run the attempt to its end; returns the exit code, which is the batch shell's as well."""
    result = _run(start, heard, mail, Lines(sys.stdout))
    code = EXIT_DONE if result is None else result.exit_code
    if mail is not None:
        again = result is not None and STATES[result.state].restarts and result.cause in _ASKS_FOR_REQUEUE
        mail.decide("requeue" if again else "end", code)
    return code


def _run(start: Start, heard: Heard, mail: Mailbox | None, screen: Screen) -> Result | None:
    previous = start.run.newest_attempt()
    if previous is not None and is_same_start(previous, start.allocation.record):
        stop = previous.asked("stop") or {}
        if stop.get("cause") == "user":
            screen.say(
                f"{start.run.name} was stopped by its user, and SLURM started it again: nothing to do."
            )
            return None
    run, begun = begin(
        start.job,
        start.options,
        lambda: _world_sizes(start.job, start.allocation.nodes),
        screen.say,
        launcher="slurm",
        run=start.run,
        allocation=start.allocation.record,
    )
    if isinstance(begun, Result):
        return begun
    send_leftovers(run, screen.say)
    with Shipping(begun, screen.say):
        result = _supervise(start, begun, heard, mail, screen)
    print_ending(run, result)
    return result


def _world_sizes(job: Job, nodes: Sequence[str]) -> list[int]:
    """The numbers of workers, of [min, max], that the nodes have room for.

    Raises:
        ClusterError: none.
    """
    room = len(nodes) * job.resources.workers_per_node
    sizes = [size for size in job.world_sizes if size <= room]
    if not sizes:
        raise ClusterError(
            f"{len(nodes)} nodes × {job.resources.workers_per_node} workers = {room}, and the job runs with "
            f"{job.world_sizes[0]} workers at least.\n"
            "SLURM gave fewer nodes than the script asks for: render it anew, or widen resources.workers."
        )
    return sizes


def _supervise(start: Start, attempt: Attempt, heard: Heard, mail: Mailbox | None, screen: Screen) -> Result:
    started: list[Guarded] = []
    try:
        node = join(start, _towards(start))
        _publish(start, node, attempt)
        screen.say(
            f"{attempt.run.name}: attempt {attempt.n} in {attempt.run.uri}, SLURM job "
            f"{start.allocation.job_id} on {', '.join(start.allocation.nodes)}"
        )
        ray = start_ray(start, node, attempt, head=None)
        started.append(ray)
        driver = _start_driver(start, node, attempt)
        started.insert(0, driver)
        verdict = _Watch(start, attempt, driver, ray, heard, mail, screen).until_the_end()
    except ClusterTrainError as error:
        verdict = failed(attempt, str(error), error.exit_code)
    finally:
        for process in started:
            process.end()
        kill_descendants()  # nothing is left, unless somebody killed a guardian
    return write_result(attempt, verdict) if verdict else result_of(attempt, driver)


def _towards(start: Start) -> str:
    """What tells the head's own address: SLURM's for it, else the way to another node; loopback alone."""
    allocation = start.allocation
    if len(allocation.nodes) == 1:
        return "127.0.0.1"
    own = allocation.launch_address
    return own if own is not None and interface_of(own) is not None else allocation.nodes[1]


def _publish(start: Start, node: Node, attempt: Attempt) -> None:
    allocation = start.allocation
    Rendezvous(
        attempt=attempt.n,
        job_id=allocation.job_id,
        restart=allocation.restart,
        head_address=node.address,
        port=node.ports.first,
        ports=str(node.ports),
        token_path=str(node.token_path),
        nodes=allocation.nodes,
    ).publish(attempt)
    arrive(start, node, attempt)


def _start_driver(start: Start, node: Node, attempt: Attempt) -> Guarded:
    """It starts at once: its imports take as long as Ray does on all nodes."""
    folder = start.folder / "driver"
    folder.mkdir(mode=0o700)
    environment = {
        **node.environment,
        "CLUSTERTRAIN_HEAD": f"{node.address}:{node.ports.first}",
        "CLUSTERTRAIN_NODES": ",".join(start.allocation.nodes),
    }
    return start_driver(attempt, folder, environment, shielded=True)


@dataclass
class _Watch:
    """Draws what happens until the driver has ended, or it must."""

    start: Start
    attempt: Attempt
    driver: Guarded
    ray: Guarded
    heard: Heard
    mail: Mailbox | None
    screen: Screen
    training: bool = False
    ending: Ending | None = None
    term_seen: bool = False
    looked_at: float = 0.0

    def until_the_end(self) -> Result | None:
        """Returns a result where the end was our decision; None where the driver has ended by itself."""
        follower = AttemptFollower(self.attempt.run.on_this_node.attempt(self.attempt.n))
        while not select.select([self.driver.fd], [], [], _POLL_S)[0]:
            records = follower.new()
            self.screen.show(records)
            self.training |= any(record["kind"] == "group_started" for record in records)
            if (result := self._hear() or self._look()) is not None:
                return result
        self.screen.show(follower.new())
        return self._went_with_ray()

    def _went_with_ray(self) -> Result | None:
        """Of a driver that ended without a word: whether it did so because Ray on this node had ended."""
        if read_result(self.attempt) is not None:
            return None
        select.select([self.ray.fd], [], [], _RAY_TELLS_WITHIN_S)
        if self.ray.code() is None:
            return None
        return self._lost(str(ray_ended(self.start.allocation.host, self.ray)))

    def _hear(self) -> Result | None:
        """What SLURM's signals ask for: first that the run saves, at last that it ends."""
        shell_term = self.mail is not None and self.mail.has_term()
        term = self.heard.terms > 0 or shell_term
        lead = self.heard.leads > 0 or (self.mail is not None and self.mail.has_lead())
        if (term and not self.term_seen) or (lead and self.ending is None):
            self.term_seen = term
            by_choice = shell_term and self.start.job.slurm.signal == "TERM"
            self._end_for(self._why(is_lead=not term or by_choice))
        if self.ending is None:
            return None
        state, cause = _state_of(self.ending.cause), self.ending.cause
        if not self.training:
            return ended(self.attempt, state, cause)
        if time.monotonic() < self.ending.deadline:
            return None
        text = "The last save was not finished when SLURM's time was up; it goes on from the one before."
        return ended(self.attempt, state, cause, text=text)

    def _why(self, *, is_lead: bool) -> Ending:
        answer = self.mail.ask() if self.mail is not None else ""
        ending = ending_of(
            answer,
            restart=self.start.allocation.restart,
            is_lead=is_lead,
            now=time.monotonic(),
            wall_s=time.time(),
        )
        if ending.cause == "terminated":  # somebody's own signal: SLURM has set no end
            return Ending("terminated", time.monotonic() + self.start.job.failures.grace_s + 30)
        return ending

    def _end_for(self, ending: Ending) -> None:
        self.ending = ending
        cause = ending.cause
        request = {
            "cause": cause,
            "state": _state_of(cause),
            "text": _TEXTS.get(cause, ""),
            "time": time.time(),
        }
        try:
            self.attempt.ask("stop", request)
        except StorageError as error:  # the ranks of this node have heard it
            self.screen.say(f"warning: {error}")
        text = f"{_WORDS[cause]}: the workers finish this step and save"
        EventLog(self.attempt.path / "events-agent.jsonl").write("note", text=text)

    def _look(self) -> Result | None:
        """Whether all nodes are still with us, and nobody took over."""
        if time.monotonic() - self.looked_at < _LOOK_EVERY_S:
            return None
        self.looked_at = time.monotonic()
        if self.ray.code() is not None:
            return self._lost(str(ray_ended(self.start.allocation.host, self.ray)))
        with suppress(StorageError):  # whoever saves meets it, and tells it
            return _taken_over(self.attempt) or self._left()
        return None

    def _left(self) -> Result | None:
        """What a node says that takes no part, or no longer."""
        for arrival in arrivals(self.attempt).values():
            if arrival.error is not None:
                if arrival.exit_code is None:
                    return self._lost(arrival.error)
                return failed(self.attempt, arrival.error, arrival.exit_code)
        return None

    def _lost(self, text: str) -> Result:
        """In the middle of a run a node may be lost by chance; what fails before would fail again."""
        if self.training:
            return ended(self.attempt, "lost", "node_fail", text=text)
        return failed(self.attempt, text, EXIT_CLUSTER)


def _taken_over(attempt: Attempt) -> Result | None:
    newest = attempt.run.newest_attempt()
    if newest is None or newest.n == attempt.n:
        return None
    text = f"Attempt {newest.n} has taken the run over; this one ends."
    return ended(attempt, "stopped", "terminated", text=text)


def _state_of(cause: str) -> str:
    """The state that an end of this cause leaves the run in."""
    if cause == "time_limit":
        return "preempted" if os.environ.get("CLUSTERTRAIN_AT_TIME_LIMIT") == "requeue" else "stopped"
    return {"cancelled": "cancelled", "terminated": "stopped"}.get(cause, "preempted")


_WORDS = {
    "preempted": "SLURM preempts the job",
    "requeued": "SLURM puts the job back into the queue",
    "time_limit": "the time limit is near",
    "cancelled": "the job was cancelled",
    "terminated": "a signal asks for the end",
}
_TEXTS = {
    "time_limit": "The time limit came with work left. Submit the job again to go on from its checkpoint.",
}
