"""Completion as a real shell asks for it."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from clustertrain.launchers.known_runs import KnownRun, record_known_run
from clustertrain.storage import Location
from commands import ran

pytestmark = pytest.mark.slow

SRC = Path(__file__).parents[2] / "src"
# Completes the line $1 as TAB does: bash calls the function that was registered for the command.
BASH = """
source <(_CLUSTERTRAIN_COMPLETE=bash_source clustertrain) || exit 1
compopt() { local IFS=' '; echo "option $*"; }
COMP_LINE=$1 COMP_POINT=${#1}
IFS=' ' read -ra COMP_WORDS <<< "$1"
[[ $1 == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
[[ $(complete -p clustertrain) =~ -F\\ ([^ ]+) ]]
${BASH_REMATCH[1]} clustertrain "${COMP_WORDS[COMP_CWORD]}" ''
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
autoload -Uz compinit && compinit -u -D
source <(_CLUSTERTRAIN_COMPLETE=zsh_source clustertrain)
compadd() { print -l -- ${(P)@[-1]}; }
_path_files() { print "option $*"; }
words=(${=1}); [[ $1 == *' ' ]] && words+=('')
CURRENT=$#words
_clustertrain_completion
"""


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Runs a shell with a `clustertrain` of this interpreter; returns the words that it completes."""
    folder = tmp_path / "here"
    (folder / "jobs").mkdir(parents=True)
    (folder / "job.yaml").write_text("name: digits\ndata: {images: {uri: a}, labels: {uri: b}}\n")
    (folder / "jobs" / "big.yaml").touch()
    (folder / "notes.txt").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("digits", "jigsaw"):
        known = KnownRun(name, "local", Location("/r"), "", str(folder / "job.yaml"))
        assert record_known_run(known) is None
    (tmp_path / "state" / "clustertrain" / "runs" / "damaged.json").write_text("{")
    program = tmp_path / "bin" / "clustertrain"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom clustertrain.cli.main import main\nmain()\n")
    program.chmod(0o755)

    def complete(line, script=BASH, name="bash"):
        ended = ran(
            [name, "-c", script, name, line],
            code=0,
            cwd=folder,
            env={
                **os.environ,
                "PATH": f"{program.parent}:{os.environ['PATH']}",
                "PYTHONPATH": str(SRC),
                "HOME": str(tmp_path),
            },
            timeout=60,
        )
        assert ended.stderr == ""
        return ended.stdout.split("\n")[:-1]

    return complete


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("clustertrain run j", ["job.yaml", "jobs/"]),
        ("clustertrain run jobs/", ["jobs/big.yaml"]),
        ("clustertrain status ", ["digits", "jigsaw", "job.yaml", "jobs/"]),
        ("clustertrain ckpt verify d", ["digits"]),
        ("clustertrain logs ji", ["jigsaw"]),
        ("clustertrain stop job", ["job.yaml", "jobs/"]),
        ("clustertrain data fetch job.yaml ", ["images", "labels"]),
        ("clustertrain data ls job.yaml im", ["images"]),
        ("clustertrain run jobs", ["option -o default", ""]),  # bash itself completes the folder
        ("clustertrain run ~nobody-has-this-name/j", ["option -o default", ""]),
        ("clustertrain chec", ["check", "checkpoint"]),
        ("clustertrain submit --to s", ["slurm"]),
    ],
)
def test_bash_completes(shell, line, words):
    assert shell(line) == words


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes(shell):
    assert shell("clustertrain status ji", ZSH, "zsh") == ["jigsaw"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(shell):
    script = "_CLUSTERTRAIN_COMPLETE=fish_source clustertrain | source; complete -C $argv[2]"
    assert shell("clustertrain status ji", script, "fish") == ["jigsaw"]


def test_a_completion_imports_nothing_slow(shell):
    """What takes most of a second: the models of a job, and storage."""
    environment = {
        "_CLUSTERTRAIN_COMPLETE": "bash_complete",
        "COMP_WORDS": "clustertrain status digi",
        "COMP_CWORD": "2",
    }
    program = "import sys; sys.argv[0] = 'clustertrain'; from clustertrain.cli.main import main; main()"
    ended = ran(
        [sys.executable, "-X", "importtime", "-c", program], code=0, env={**os.environ, **environment}
    )
    assert ended.stdout == "plain,digits\n"
    assert "clustertrain.cli.complete" in ended.stderr
    assert not re.search(r"\| +(pydantic|torch|ray|boto3|yaml)\b", ended.stderr)
