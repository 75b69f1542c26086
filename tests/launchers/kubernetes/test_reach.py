"""The commands that run in a pod: its command line takes each of them, on the job file of the pod."""

from dataclasses import dataclass
from types import SimpleNamespace

import click
import pytest

from clustertrain.cli.main import main
from clustertrain.launchers.kubernetes import storage
from clustertrain.launchers.kubernetes.render.paths import JOB_FILE
from clustertrain.launchers.target import NotThere, Target


@pytest.fixture
def sent(job, monkeypatch):
    """The arguments of the command in the pod."""

    class Storage:
        def lines(self, *arguments):
            yield from arguments

    monkeypatch.setattr(storage, "RunStorage", lambda job, head: Storage())
    monkeypatch.setattr(storage, "observe_run", lambda job, notes: SimpleNamespace(head="head"))
    target = Target("digits", job(image="kit", storage="s3://bucket/runs"))
    return lambda *command: list(storage.KubernetesReach().lines(target, command))


@pytest.mark.parametrize(
    "command",
    [
        *(["stacks"], ["explain"], ["explain", "--attempt", "3", "--json"], ["drilled"]),
        *(["report", "--send", "60"], ["ckpt", "save"]),
        *(["ckpt", "ls", "--json"], ["ckpt", "verify"], ["data", "ls", "digits"]),
    ],
    ids=" ".join,
)
def test_the_command_line_of_a_pod_takes_it(sent, command):
    group, rest = main, sent(*command)
    while isinstance(group, click.Group):
        group = group.get_command(click.Context(group), rest.pop(0))
    given = group.make_context("pod", rest).params
    assert JOB_FILE in (given.get("target"), *(given.get("targets") or ()))
    assert given.get("attempt") in (None, 3) and given.get("send") in (None, 60)


def test_a_head_that_ends_meanwhile_is_followed_by_a_reader_pod(sent, monkeypatch):
    @dataclass(frozen=True)
    class Storage:
        head: str | None = "head"
        printed: tuple[str, ...] = ()

        def lines(self, *arguments):
            if self.head is None:
                yield "read"
                return
            yield from self.printed
            raise NotThere("the head's pod is gone")

    monkeypatch.setattr(storage, "RunStorage", lambda job, head: Storage())
    assert sent("drilled") == ["read"]
    monkeypatch.setattr(storage, "RunStorage", lambda job, head: Storage(printed=("half",)))
    with pytest.raises(NotThere):
        sent("drilled")
