"""A job of several hosts of a plug-in: its script, what its agents are told, what ends it.
tests/slurm/test_hosts_of_a_plugin.py has whole runs."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.agent.node import NodeStart, settings_of
from clustertrain.launchers.scheduler.agent import ForAgent
from clustertrain.launchers.scheduler.needs import Needs
from clustertrain.launchers.scheduler.several_hosts import SeveralHostsEnd, _start_agents
from clustertrain.launchers.scheduler.start import _hosts
from clustertrain.run_files.admission import Options
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.supervise.process import Guarded
from clustertrain.supervise.stop_on_signal import StopOnSignal
from support.waiting import wait_until

NEEDS = Needs("queue", "job.yaml", 2, 1, 0, None, 60.0, ("CLUSTERTRAIN_SUBMISSION",), Options())
RECORD = SchedulerStart("queue", "7.server", {}, "0", ("node1", "node2", "node3"))
TOKEN = "0123456789abcdef"


@pytest.mark.parametrize("on", ["", "ssh"])
def test_words_without_the_name_of_the_host_are_refused(on):
    with pytest.raises(TypeError, match=r"without .host"):
        NEEDS.program("7", hosts="$HOSTS", on=on)


def test_each_host_is_listed_once_and_this_one_first():
    assert _hosts("n1,n2,n2,n3", "n2.site") == ("n2", "n1", "n3")
    assert _hosts("n1.site,n2.site", "n2") == ("n2.site", "n1.site")
    assert _hosts("10.0.0.1,10.0.0.2", "n1") == ("10.0.0.1", "10.0.0.2")
    assert _hosts("", "n1") == ("n1",)


@pytest.mark.parametrize("text", ["", "\n", '{"token": "a"}\n'])
def test_an_agent_without_a_start_says_what_has_to_pass_it_on(text):
    with pytest.raises(ClusterError, match=r"got no start on its standard input.*\n.*`on`"):
        ForAgent.from_text(text)


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "s")
    job = Job.model_validate({"name": "a", "function": "m:f", "env": {"A": "${SECRET}"}})
    run = RunDir.newest(str(tmp_path / "runs"), "a")
    (tmp_path / "node").mkdir()
    return NodeStart(job, run, Options(), RECORD, 0, tmp_path / "node", (), settings_of(job), TOKEN)


@pytest.mark.slow
def test_the_agents_get_the_token_and_the_variables_on_their_standard_input_alone(start, tmp_path):
    on = f"""sh -c 'echo "$@" > "$0"; cat >> "$0"; env >> "$0"' {tmp_path}/got-{{host}}"""
    agents = _start_agents(start, on, "job.yaml")
    try:
        assert [*agents] == ["node2", "node3"]
        wait_until(lambda: all(agent.code() is not None for agent in agents.values()), 60)
    finally:
        for agent in agents.values():
            agent.end()
    words, told, *environment = (tmp_path / "got-node3").read_text().splitlines()
    assert words.endswith("-m clustertrain.launchers.scheduler.agent 2")
    got = ForAgent.from_text(told)
    assert (got.record, got.token, got.folder) == (RECORD, TOKEN, str(Path.cwd()))
    assert got.variables == {"SECRET": "s", "CLUSTERTRAIN_SUBMISSION": "job.yaml"}
    assert TOKEN not in words + "".join(environment)
    assert (start.folder / "agents" / "token").stat().st_mode & 0o777 == 0o600


class Ended:
    """An agent, or Ray, that has ended with this code; None: it lives."""

    def __init__(self, code):
        self._code = code

    def code(self):
        return self._code

    def how_it_ended(self):
        return f"ended with code {self._code}"

    def last_lines(self):
        return "  | ssh: no route"


@pytest.fixture
def policy(start):
    attempt = claim_attempt(start.run, launcher="queue", allocation=RECORD)
    stop = StopOnSignal(attempt, [], {15: ("stopped", "terminated")}, None, once=True)
    return SeveralHostsEnd(start, attempt, Ended(None), stop, {"node2": Ended(None), "node3": Ended(255)})


@pytest.mark.parametrize(
    ("is_training", "retries", "state", "cause"),
    [(True, 3, "lost", "node_fail"), (False, 3, "lost", "node_fail"), (False, 0, "failed", "cluster")],
)
def test_a_host_whose_words_have_ended_is_lost_at_the_second_look(policy, is_training, retries, state, cause):
    """Meanwhile its agent writes its reason to the storage, if it finds that."""
    job = policy.start.job
    failures = job.failures.model_copy(update={"retries": retries})
    policy.start = replace(policy.start, job=job.model_copy(update={"failures": failures}))
    assert policy.end_now(is_training) is None
    assert policy.end_now(is_training) is None, "no second look within 2 s"
    policy.checked_at = 0.0
    result = policy.end_now(is_training)
    assert (result.state, result.cause) == (state, cause)
    assert result.text.startswith("The agent on node3 ended with code 255.\n  | ssh: no route")
    assert ("may have other hosts" in result.text) == (not is_training and retries > 0)


def test_an_agent_that_ends_after_a_signal_is_no_cause(policy):
    policy.stop.signals.append(15)
    for _ in range(3):
        assert policy.end_now(True) is None
        policy.checked_at = 0.0
    request = policy.attempt.stop.read()
    assert (request.state, request.cause) == ("stopped", "terminated")


def test_a_newer_attempt_ends_this_one(policy):
    policy.agents = {}
    claim_attempt(policy.start.run, launcher="queue", allocation=replace(RECORD, start="1"))
    result = policy.end_now(True)
    assert (result.state, result.cause) == ("stopped", "terminated")


@pytest.mark.slow
def test_the_exit_code_of_ssh_is_no_signal(tmp_path):
    for command, said in (("exit 255", "ended with code 255"), ("kill -9 $$", "was killed by signal 9")):
        process = Guarded(["sh", "-c", command], tmp_path / "log", tmp_path / "own", os.environ)
        wait_until(lambda p=process: p.code() is not None, 60)
        process.end()
        assert process.how_it_ended() == said
