"""The lines of slurm.setup that bash cannot parse are refused before the queue, and only those."""

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.errors import EXIT_JOB, JobError
from clustertrain.launchers.slurm.setup_lines import check_setup

WRONG = {
    "a word without its beginning": (
        ["export A=b", "fi", "touch c"],
        ["line 2 is fi", "bash: syntax error near unexpected token `fi'"],
    ),
    "an open quote": (["touch 'a", "b"], ["line 1 is touch 'a", "unexpected EOF while looking for matching"]),
    "an open if": (["module load cuda", "if true; then"], ["its 2 lines are not complete", "end of file"]),
    "an open here-document": (["cat <<END", "a"], ["here-document", "END"]),
    "an argument in brackets": (
        ["ls (a|b)"],
        ["line 1 is ls (a|b)", "bash: syntax error near unexpected token"],
    ),
}
RIGHT = {
    "a block over lines": ["if true; then", "  export A='ü b'", "fi"],
    "a here-document": ["cat <<END", "'", "END"],
    "extended patterns, which a line turns on": ["shopt -s extglob", "ls !(a|b)"],
    "what fails only when it runs": ["module load cuda/99", "exit 7", "set -u; echo $UNSET"],
}


@pytest.mark.parametrize(("lines", "said"), WRONG.values(), ids=WRONG)
def test_lines_that_are_no_shell_are_refused(lines, said):
    with pytest.raises(JobError) as caught:
        check_setup(lines)
    error = str(caught.value)
    assert all(text in error for text in said), error
    assert len(error.splitlines()) in (2, 3)


@pytest.mark.parametrize("lines", RIGHT.values(), ids=RIGHT)
def test_valid_shell_is_not_refused_and_not_executed(lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_setup([*lines, "touch canary"])
    assert [*tmp_path.iterdir()] == []


def test_nothing_is_checked_without_bash(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    check_setup(["fi"])


@pytest.mark.parametrize("command", ["check", "render"])
def test_the_command_ends_with_the_code_of_a_wrong_job(tmp_path, command):
    (tmp_path / "train.py").write_text("def train(config): pass\n")
    job = tmp_path / "job.yaml"
    job.write_text(
        f"{{name: a, function: 'train:train', code: {tmp_path}, storage: {tmp_path}/runs,\n"
        " slurm: {python: /sw/python, setup: [export A=b, 'done']}}\n"
    )
    done = CliRunner().invoke(main, [command, "--to", "slurm", str(job)])
    assert done.exit_code == EXIT_JOB, done.output
    assert "slurm.setup: line 2 is done" in done.output
    job.write_text(job.read_text().replace("'done'", "'true'"))
    assert CliRunner().invoke(main, [command, "--to", "slurm", str(job)]).exit_code == 0
