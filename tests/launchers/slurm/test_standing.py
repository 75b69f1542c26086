from dataclasses import replace

import pytest

from clustertrain.launchers.scheduler.run_state import Files, standing_of
from clustertrain.launchers.slurm.queue import NATIVE_STATES, state_of
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.states import STATES

DONE = Result("done", "finished", 0)
STOPPED = Result("stopped", "user", 75)
TERMINATED = Result("stopped", "terminated", 75)
PREEMPTED = Result("preempted", "preempted", 75)
DOWN = "SLURM does not answer: Unable to contact slurm controller"
FORGOTTEN = None
BEATS = "pid 7 on node1"
OVER, GOES_ON = True, False


def files(start=None, result=None, live="waiting", cancelled=False):
    """Of job 12, which made attempt 3 at `start`; None: the newest attempt, if any, is of another job."""
    is_of_job = start is not None
    attempt = 3 if is_of_job else None
    return Files("SLURM job 12", attempt, is_of_job, str(start or 0), result, live, cancelled)


def job(native, restarts=0, reason="", nodes="", exit_code=None):
    code = 0 if native == "COMPLETED" else exit_code
    return replace(state_of(native, reason, nodes, code), start="" if restarts is None else str(restarts))


NEVER = files()
LOST = Result("lost", "node_fail", 1, text="Node node2 was lost: SLURM has it as down* since 12:39.\nMore.")
DONE_BY_ANOTHER = Files("SLURM job 12", attempt=2, result=DONE)
FIRST = files(0, live="running")
TAKEN_OUT_LATER = files(0, PREEMPTED, cancelled=True)
CASES = {
    # what the files say, what SLURM says, who has a heartbeat: where the run stands, and whether it is over
    "submitted": (NEVER, job("PENDING", reason="Priority"), None, "queued (scheduler)", GOES_ON),
    "held": (NEVER, job("REQUEUE_HOLD"), None, "queued (held)", GOES_ON),
    "booting": (NEVER, job("CONFIGURING"), None, "waiting (nodes)", GOES_ON),
    "started": (NEVER, job("RUNNING"), None, "waiting (nodes)", GOES_ON),
    "its workers come": (files(0), job("RUNNING"), None, "waiting (workers)", GOES_ON),
    "stages": (files(0, live="staging"), job("RUNNING"), None, "staging (data)", GOES_ON),
    "trains": (FIRST, job("RUNNING"), None, "running (training)", GOES_ON),
    "trains, a new word": (FIRST, job("LEVITATING"), None, "running (training)", GOES_ON),
    "suspended": (FIRST, job("SUSPENDED"), None, "waiting (suspended)", GOES_ON),
    "terminated, may go on": (files(0, TERMINATED), job("RUNNING"), None, "stopped (terminated)", GOES_ON),
    "terminated, is ended": (files(0, TERMINATED), job("COMPLETING"), None, "stopped (terminated)", GOES_ON),
    "is being killed": (FIRST, job("COMPLETING"), None, "running (training)", GOES_ON),
    "cancelled while it came up": (NEVER, job("COMPLETING"), None, "waiting (nodes)", GOES_ON),
    "done, tidies up": (files(0, DONE), job("RUNNING"), None, "done (finished)", GOES_ON),
    "preempted, tidies up": (files(0, PREEMPTED), job("RUNNING"), None, "preempted (preempted)", GOES_ON),
    "preempted, leaves": (files(0, PREEMPTED), job("COMPLETING", 1), None, "preempted (preempted)", GOES_ON),
    "requeued": (files(0, PREEMPTED), job("PENDING", 1, "BeginTime"), None, "queued (requeued)", GOES_ON),
    "requeued and held": (FIRST, job("REQUEUE_HOLD", 1), None, "queued (held)", GOES_ON),
    "started again": (files(0, PREEMPTED), job("RUNNING", 1), None, "waiting (nodes)", GOES_ON),
    "trains again": (files(1, live="running"), job("RUNNING", 1), None, "running (training)", GOES_ON),
    "done, ended": (files(0, DONE), job("COMPLETED"), None, "done (finished)", OVER),
    "preempted for good": (files(0, PREEMPTED), job("PREEMPTED"), None, "preempted (preempted)", OVER),
    "cancelled in the queue": (NEVER, job("CANCELLED"), None, "cancelled (cancelled)", OVER),
    "cancelled later": (files(0, PREEMPTED), job("CANCELLED", 1), None, "cancelled (cancelled)", OVER),
    "done, then cancelled": (files(0, DONE), job("CANCELLED", 1), None, "done (finished)", OVER),
    "killed after a requeue": (files(0, PREEMPTED), job("NODE_FAIL", 1), None, "lost (vanished)", OVER),
    "nothing left to do": (files(0, PREEMPTED), job("COMPLETED", 1), None, "preempted (preempted)", OVER),
    "done by another": (DONE_BY_ANOTHER, job("COMPLETED"), None, "done (finished)", OVER),
    "lost a node": (FIRST, job("NODE_FAIL"), None, "lost (vanished)", OVER),
    "out of time": (FIRST, job("TIMEOUT"), None, "lost (time_limit)", OVER),
    "did not boot": (NEVER, job("BOOT_FAIL"), None, "lost (vanished)", OVER),
    "its script was refused": (NEVER, job("FAILED", exit_code=3), None, "failed (cluster)", OVER),
    "no progress": (files(0, PREEMPTED), job("FAILED", 1, exit_code=1), None, "failed (error)", OVER),
    "its agent was killed": (files(0), job("FAILED", exit_code=1), None, "lost (vanished)", OVER),
    "a code of its own": (NEVER, job("FAILED", exit_code=9), None, "lost (vanished)", OVER),
    "by accounting": (FIRST, job("NODE_FAIL", None), None, "lost (vanished)", OVER),
    "by accounting, done": (files(3, DONE), job("COMPLETED", None), None, "done (finished)", OVER),
    "forgotten, done": (files(0, DONE), FORGOTTEN, None, "done (finished)", OVER),
    "forgotten, preempted": (files(0, PREEMPTED), FORGOTTEN, None, "preempted (preempted)", OVER),
    "forgotten, dead": (FIRST, FORGOTTEN, None, "lost (vanished)", OVER),
    "forgotten, alive": (FIRST, FORGOTTEN, BEATS, "running (training)", GOES_ON),
    "forgotten, never started": (NEVER, FORGOTTEN, None, "lost (vanished)", OVER),
    "forgotten, taken out": (files(cancelled=True), FORGOTTEN, None, "cancelled (cancelled)", OVER),
    "forgotten, taken out later": (TAKEN_OUT_LATER, FORGOTTEN, None, "cancelled (cancelled)", OVER),
    "forgotten, stopped before": (files(0, STOPPED, cancelled=True), FORGOTTEN, None, "stopped (user)", OVER),
    "silent, done": (files(0, DONE), DOWN, None, "done (finished)", OVER),
    "silent, preempted": (files(0, PREEMPTED), DOWN, None, "preempted (preempted)", GOES_ON),
    "silent, alive": (FIRST, DOWN, BEATS, "running (training)", GOES_ON),
    "silent, dead": (FIRST, DOWN, None, "lost (vanished)", GOES_ON),
    "silent, submitted": (NEVER, DOWN, None, "queued (scheduler)", GOES_ON),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_where_a_run_stands(case):
    its_files, said, beats, stands, over = CASES[case]
    queued, no_answer = (None, DOWN) if said is DOWN else (said, None)
    standing = standing_of(its_files, queued, no_answer, lambda: beats)
    assert (f"{standing.state} ({standing.cause})", standing.over) == (stands, over)
    assert standing.cause in STATES[standing.state].causes
    assert standing.of_result == (its_files.result is not None and standing.state == its_files.result.state)


@pytest.mark.parametrize("native", NATIVE_STATES)
@pytest.mark.parametrize("result", [None, DONE, PREEMPTED], ids=["none", "done", "preempted"])
@pytest.mark.parametrize("restart", [None, 0, 1])
@pytest.mark.parametrize("restarts", [None, 0, 1])
def test_every_state_of_slurm_leads_somewhere_that_agrees_with_itself(native, result, restart, restarts):
    def heartbeat():
        raise AssertionError("SLURM tells; nobody waits for a heartbeat")

    standing = standing_of(files(restart, result), job(native, restarts), None, heartbeat)
    state = STATES[standing.state]
    assert standing.cause in state.causes
    assert not (standing.over and not state.final)
    assert not (standing.runner and state.final)


def test_a_run_that_lost_a_node_and_waits_again_says_which():
    lost = standing_of(files(0, LOST), job("PENDING", 1, "BeginTime"), None, lambda: None)
    assert (lost.state, lost.cause) == ("queued", "requeued")
    assert lost.text.endswith(
        "; again after attempt 3: Node node2 was lost: SLURM has it as down* since 12:39."
    )
