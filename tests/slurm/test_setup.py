"""The lines of slurm.setup on a real node: what reaches the agents, and what ends the job."""

import re

import pytest

# In place of the agent: it ends the step only after the batch shell has polled several times.
AGENT = """\
#!/bin/sh
env > "$SLURM_SUBMIT_DIR/environment-$SLURM_NODEID"
pwd > "$SLURM_SUBMIT_DIR/folder-$SLURM_NODEID"
[ "$SLURM_NODEID" -ne 0 ] || : > "$CLUSTERTRAIN_MAIL/agent"
sleep 1
"""


PROFILE = """\
module() { test "$2" != cuda/99 || { echo "cuda/99: no such module"; return 7; }; export LOADED=$2; }
cd /
"""


@pytest.fixture
def login(login, tmp_path):
    login.write_agent(AGENT)
    (tmp_path / ".bash_profile").write_text(PROFILE)
    return login


def output_of(login, state: str, *setup: str, **sections) -> str:
    """The output of a job with these lines, once SLURM has it in this state."""
    login.job(**sections, slurm={"setup": list(setup)})
    job_id = re.search(r"SLURM job (\d+)", login.submit(HOME=str(login.folder)))[1]
    job = login.cluster.wait_for_state(job_id, {"COMPLETED", "FAILED"})
    output = (login.folder / f"digits-{job_id}.out").read_text()
    assert job["JobState"] == state, output
    assert job["ExitCode"] == ("0:0" if state == "COMPLETED" else "3:0"), output
    assert "ct-mail" not in login.cluster.run_on(job["BatchHost"], ["ls", "/tmp"]).stdout
    return output


def test_what_setup_exports_reaches_all_nodes_and_its_options_not_the_batch_shell(login, tmp_path):
    """A file that a line sources may contain commands that fail. With `set -e` in the batch shell the job
    would end with code 142 at the shell's first poll."""
    (tmp_path / "sourced").write_text('false\nexport SOURCED="it\'s"\n')
    setup = (
        "source ./sourced",
        "set -euo pipefail; IFS=,; launch=overwritten; mail=/; set -- a b",
        "module load cuda/12",
        "if true; then",
        "  export BRANCH='a b'",
        "fi",
        "false || true",
        'cd /; trap "echo trapped" TERM',
    )
    output = output_of(login, "COMPLETED", *setup, resources={"workers": 2, "nodes": 2})
    for node in "01":
        environment = (tmp_path / f"environment-{node}").read_text().splitlines()
        assert {"LOADED=cuda/12", "BRANCH=a b", "SOURCED=it's"} <= {*environment}, output
        assert (tmp_path / f"folder-{node}").read_text() == f"{tmp_path}\n"


FAILURES = {
    "a failed line": (
        ["export A=b", "module load cuda/99", "touch canary"],
        "no such module\nerror: slurm.setup on NODE: line 2 ended with code 7: module load cuda/99\n",
    ),
    "with set -e": (["set -e", "false"], "slurm.setup on NODE: line 2 ended with code 1: false\n"),
    "exit": (["exit 0", "touch canary"], "slurm.setup on NODE ended with code 0 before the end"),
    "an unset variable": (
        ["set -u", "echo $UNSET", "touch canary"],
        "NODE ended with code 127 before the end",
    ),
    "an open if": (
        ["if true; then", "touch canary"],
        "/setup: line 4: syntax error: unexpected end of file",
    ),
}


@pytest.mark.parametrize(("setup", "said"), FAILURES.values(), ids=FAILURES)
def test_a_setup_that_fails_ends_the_job_with_the_line(login, tmp_path, setup, said):
    output = output_of(login, "FAILED", *setup)
    assert said in re.sub(r"\bnode\d\b", "NODE", output)
    assert output.count("error: slurm.setup") == 1
    assert not (tmp_path / "canary").exists()
    assert not (tmp_path / "environment-0").exists()


def test_a_profile_that_replaces_its_shell_ends_the_job(login, tmp_path):
    (tmp_path / ".bash_profile").write_text("exec true\n")
    output = output_of(login, "FAILED", "export A=b")
    assert "ended with code 0 before slurm.setup" in output
    assert not (tmp_path / "environment-0").exists()
