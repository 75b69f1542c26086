"""Commands are real processes: a shell script in a folder that is the whole PATH."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clustertrain.errors import EXIT_CLUSTER
from clustertrain.launchers.shell import CommandFailed, CommandMissing, run
from support.commands import write_program


@pytest.fixture
def program(tmp_path):
    """Writes a program; returns the environment that it alone is found in."""

    def write(name, body):
        write_program(tmp_path / name, body)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    return write


def test_the_words_meet_no_shell(program, tmp_path):
    environ = program("tool", 'printf "%s|" "$@"')
    words = ["$(touch made)", "a b", "'", '"', "; touch made", "*", "", "x\ny"]
    assert run(["tool", *words], environ=environ).stdout == "".join(f"{word}|" for word in words)
    assert not (tmp_path / "made").exists()
    assert not Path("made").exists()


def test_it_reads_the_input_and_without_one_nothing_and_no_terminal(program):
    read = run(["tool"], input=b"a\n\0b", environ=program("tool", "od -An -c")).stdout
    assert read.split() == ["a", "\\n", "\\0", "b"]
    assert run(["tool"], environ=program("tool", "cat; test -t 0 || echo none")).stdout == "none\n"


def test_a_failure_carries_everything_and_says_it_in_three_lines(program):
    environ = program("sbatch", "echo half; echo one >&2; echo two >&2; echo >&2; echo three >&2; exit 255")
    with pytest.raises(CommandFailed) as caught:
        run(["sbatch", "--parsable", "x" * 500], environ=environ)
    error = caught.value
    assert (error.argv[:2], error.code, error.stdout) == (("sbatch", "--parsable"), 255, "half\n")
    assert error.stderr == "one\ntwo\n\nthree\n"
    assert error.exit_code == EXIT_CLUSTER
    first, *rest = str(error).splitlines()
    assert first.startswith("sbatch ended with code 255: sbatch --parsable xxx")
    assert len(first) < 110
    assert rest == ["two", "three"]


@pytest.mark.parametrize(
    ("body", "said"), [("echo only >&1; exit 1", "only"), ("exit 1", "It printed nothing.")]
)
def test_a_failure_is_told_by_the_output_where_it_printed_no_error(program, body, said):
    with pytest.raises(CommandFailed) as caught:
        run(["tool"], environ=program("tool", body))
    assert str(caught.value).splitlines() == ["tool ended with code 1: tool", said]


def test_ctrl_c_is_for_the_command_that_has_the_terminal():
    program = (
        "import sys; from clustertrain.launchers.shell import attached; sys.exit(attached(sys.argv[1:]))"
    )
    waits = "trap 'echo asked; exit 7' INT; echo up; for n in $(seq 60); do sleep 1; done"
    is_heard = ["env", "--default-signal=INT"]  # these tests may run in the background of a script
    words = [*is_heard, sys.executable, "-c", program, "sh", "-c", waits]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout.readline() == "up\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.read() == "asked\n"
    assert process.returncode == 7


def test_a_command_in_the_background_of_a_script_ignores_ctrl_c_as_the_script_does():
    program = "import sys; from clustertrain.launchers.shell import attached; attached(sys.argv[1:])"
    shows = "grep SigIgn /proc/self/status"
    script = f'"{sys.executable}" -c "{program}" sh -c "{shows}" & wait'
    printed = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert int(printed.split()[1], 16) & 1 << signal.SIGINT - 1


@pytest.mark.parametrize("name", ["sbatch", "squeue", "scontrol"])
def test_a_missing_command_of_slurm_says_where_it_is(tmp_path, name):
    with pytest.raises(CommandMissing) as caught:
        run([name], environ={"PATH": str(tmp_path)})
    assert caught.value.exit_code == EXIT_CLUSTER
    first, second = str(caught.value).splitlines()
    assert first == f"{name} is not on PATH on this machine."
    assert "login nodes" in second


def test_a_program_that_may_not_be_run(tmp_path):
    (tmp_path / "tool").write_text("no program")
    with pytest.raises(CommandMissing, match="tool may not be run"):
        run(["tool"], environ={"PATH": str(tmp_path)})


def test_a_command_that_the_system_cannot_start_is_a_failure_with_the_reason(tmp_path):
    (tmp_path / "tool").write_bytes(b"\0")
    (tmp_path / "tool").chmod(0o755)
    with pytest.raises(CommandFailed, match=r"cannot be started \(Exec format error\)") as caught:
        run([str(tmp_path / "tool")])
    assert caught.value.code is None
    with pytest.raises(CommandFailed, match="Argument list too long"):
        run(["true", "x" * 200_000])
