"""Where relative paths of a program lead, on two ranks: in a submitted run to a folder of the run."""

import json
import os
import sys
from pathlib import Path

import pytest

from support.commands import ran

CLI = [sys.executable, "-m", "clustertrain.cli"]

# It resumes from a relative file, as many scripts do, and reads another one.
SCRIPT = """\
import os, sys
import torch
import torch.distributed as dist
from near import VERSION

dist.init_process_group("gloo")
total = int(sys.argv[1])
start = torch.load("snapshot.pt")["epoch"] if os.path.exists("snapshot.pt") else 0
found = torch.tensor([start])
dist.all_reduce(found)  # of both ranks
if dist.get_rank() == 0:
    print("from", found.item() // 2, "with", open("words.txt").read(), VERSION, flush=True)
    torch.save({"epoch": total}, "snapshot.pt")
    with open("words.txt", "a") as file:
        file.write("!")
dist.barrier()
dist.destroy_process_group()
if total == 9:
    raise KeyError("nine")
"""

FUNCTION = """\
import json
from pathlib import Path
from clustertrain import session
import near

def train(config):
    s = session.current()
    start = json.loads(Path("state.json").read_text()) if Path("state.json").exists() else 0
    s.print("from", start, "with", Path("words.txt").read_text(), near.VERSION)
    if s.rank == 0:
        Path("state.json").write_text(json.dumps(config["steps"]))
        Path("words.txt").write_text("a b!")
    if config["steps"] == 9:
        raise KeyError("nine")
"""

PROGRAMS = {
    "script": ({"script": "train.py", "args": ["3"]}, "args", '["{}"]'),
    # A process of its own, which would otherwise import from its working directory first.
    "module": ({"module": "train", "args": ["3"], "env": {"OMP_NUM_THREADS": "1"}}, "args", '["{}"]'),
    "function": ({"function": "train:train", "args": {"steps": 3}}, "args.steps", "{}"),
}


@pytest.fixture
def make(make_run):
    """Makes a run with the files of its code in a folder of their own."""

    def made(program, **sections):
        run = make_run("placed", **PROGRAMS[program][0], code="code", failures={"retries": 0}, **sections)
        code = run.folder / "code"
        code.mkdir()
        (code / "train.py").write_text(FUNCTION if program == "function" else SCRIPT)
        (code / "near.py").write_text("VERSION = 1\n")
        (code / "words.txt").write_text("a b")
        return run

    return made


def submitted(run, program, total=3, code=0):
    """Submit it to this machine until its end. Without Ray it costs a third."""
    key, form = PROGRAMS[program][1:]
    argv = [*CLI, "submit", "--to", "local", "--wait", "--no-check", str(run.job_file)]
    environ = {**os.environ, "CLUSTERTRAIN_RAY": "none"}
    ran([*argv, "--set", f"{key}={form.format(total)}"], code=code, env=environ, timeout=300)


# In CI test_entry_points.py has a module.
@pytest.mark.parametrize("program", ["script", pytest.param("module", marks=pytest.mark.nightly), "function"])
def test_a_submitted_run_works_in_its_own_folder_and_goes_on_there(make, program):
    run = make(program)
    code, work = run.folder / "code", run.run_dir.local_path(run.run_dir.work_key)
    submitted(run, program)
    assert "from 0 with a b 1\n" in run.rank_log(0)
    assert sorted(each.name for each in code.iterdir()) == ["near.py", "train.py", "words.txt"]
    assert (work / "words.txt").read_text() == "a b!"

    (code / "near.py").write_text("VERSION = 2\n")
    submitted(run, program, 9, code=1)
    assert "from 3 with a b! 2\n" in run.rank_log(0)
    assert "KeyError: 'nine'" in run.result.text
    last_line = len((code / "train.py").read_text().splitlines())
    assert f"train.py:{last_line}" in run.result.text, run.result.text
    assert str(work) not in run.result.text + run.rank_log(0), "errors are in the unpacked code"
    assert not [event for event in run.events if event["kind"] == "warning"]


def test_a_run_on_this_machine_lists_what_it_leaves_and_a_fresh_start_names_it(make):
    run = make("script")
    code = run.folder / "code"
    output = run.start("--no-ray").end(0)
    assert "from 0 with a b 1\n" in output
    assert f"\nnew files in {code}: snapshot.pt\n" in output
    output = run.start("--no-ray", "--fresh").end(0)
    note = f"the code may continue from them: {code / 'snapshot.pt'}\n"
    assert note in output and "from 3 with a b! 1\n" in output and "new files" not in output
    assert json.loads((run.run_dir.at(1).local_path(f"{run.name}/g1/left.json")).read_text())["names"]


@pytest.mark.s3
def test_without_a_shared_folder_the_files_that_are_lost_are_named(make, moto_s3, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    location = moto_s3.location("runs")
    run = make(
        "function", storage={"uri": location.uri, "endpoint": location.endpoint, "region": location.region}
    )
    submitted(run, "function")
    (warning,) = (event["text"] for event in run.events if event["kind"] == "warning")
    lost, remedy = warning.splitlines()
    assert lost == "these files are lost with this node's copy of the code: state.json, words.txt"
    assert "session.save" in remedy


def test_a_file_beside_the_source_file_is_lost_with_the_copy_too(make):
    run = make("script")
    script = run.folder / "code" / "train.py"
    script.write_text(SCRIPT.replace('"snapshot.pt")\n', 'os.path.dirname(__file__) + "/snapshot.pt")\n'))
    submitted(run, "script")
    (warning,) = (event["text"] for event in run.events if event["kind"] == "warning")
    assert "copy of the code: snapshot.pt\n" in warning and "begins in the working directory" in warning
    assert not Path(run.run_dir.local_path(run.run_dir.work_key), "snapshot.pt").exists()
