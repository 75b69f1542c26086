import json
import os
import re
import resource
import shutil
import stat
import sys
import time

import pytest
import torch
import yaml
from click.testing import CliRunner

from clustertrain.checkpoints import read
from clustertrain.checkpoints.manifest import names, read_manifest
from clustertrain.cli import checkpoints as commands
from clustertrain.cli.main import main
from clustertrain.job.file import parse_job
from clustertrain.observe import checkpoints
from clustertrain.observe.tables import summary_rows
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import record_job
from clustertrain.run_files.records.result import BestCheckpoint
from clustertrain.run_files.result import ended, write_result
from clustertrain.run_files.streams.event_log import EventLog
from support.commands import ran
from support.sample_checkpoints import commit, save

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path):
    """A run with checkpoints of steps 10 and 20: a model with tied weights, and an optimizer's state."""
    run = RunDir.newest(str(tmp_path / "runs"), "digits")
    claim_attempt(run)
    for step in (10, 20):
        tied = torch.full((2, 3), float(step))
        model = {"a.weight": tied, "b.weight": tied, "n": torch.tensor(step)}
        save(run.checkpoints, step, {"model": model, "optimizer": {"lr": 0.1}}, accuracy=step / 100)
    return run


@pytest.fixture
def ckpt(run):
    return lambda command, *options: CliRunner().invoke(
        main, ["ckpt", command, str(run.local_path(run.key).parent), *options]
    )


def test_ls_of_a_script_lists_the_files_of_its_folder_newest_first(ckpt, run):
    folder = run.local_path(run.checkpoints.key)
    shutil.rmtree(folder)
    record_job(run.attempt(1), parse_job("name: digits\nscript: train.py\n", "job.yaml"))
    for name, size_bytes, at in (
        ("epoch_1/model.pt", 2048, 100),
        ("last.pt", 5, 200),
        (".unfinished", 1, 300),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(size_bytes))
        os.utime(folder / name, (at, at))
    assert [line.split()[:3] for line in ckpt("ls").output.splitlines()] == [
        ["NAME", "SIZE", "WRITTEN"],
        ["last.pt", "5", "B"],
        ["epoch_1/model.pt", "2.0", "KiB"],
    ]
    first, _ = json.loads(ckpt("ls", "--json").output)
    assert (first["name"], first["size_bytes"], first["written_at"]) == ("last.pt", 5, 200)
    assert (first["step"], first["why"]) == (None, "script")


def test_verify_reads_every_byte(ckpt, run):
    assert ckpt("verify").output.count("whole") == 2
    file = run.local_path(run.key) / "checkpoints" / "00000010-1.0" / "training.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    result = ckpt("verify")
    assert result.exit_code == 4
    assert "00000010-1.0  damaged" in result.output
    assert "training.pt" in result.output
    assert "1 of the checkpoints" in result.stderr


def test_an_export_loads_without_clustertrain(ckpt, tmp_path):
    result = ckpt("export", "--output", str(tmp_path / "out" / "digits.safetensors"))
    assert result.exit_code == 0, result.output
    code = (
        "import sys\n"
        "from safetensors.torch import load_file\n"
        f"w = load_file({str(tmp_path / 'out' / 'digits.safetensors')!r})\n"
        "assert 'clustertrain' not in sys.modules\n"
        "print(sorted(w), w['a.weight'].equal(w['b.weight']), w['a.weight'].tolist(), w['n'].item())"
    )
    done = ran([sys.executable, "-c", code], code=0)
    assert done.stdout == "['a.weight', 'b.weight', 'n'] True [[20.0, 20.0, 20.0], [20.0, 20.0, 20.0]] 20\n"
    page = json.loads((tmp_path / "out" / "digits.json").read_text())
    assert (page["step"], page["checkpoint"], page["metrics"]) == (20, "00000020-1.0", {"accuracy": 0.2})


def test_an_export_has_another_name_than_the_page_beside_it(ckpt, tmp_path):
    result = ckpt("export", "--output", str(tmp_path / "digits.json"))
    assert (result.exit_code, "does not end in .json" in result.stderr) == (2, True)
    assert not (tmp_path / "digits.json").exists()


def test_an_export_of_an_older_one_and_of_none(ckpt, tmp_path):
    to = str(tmp_path / "old.safetensors")
    assert ckpt("export", "--name", "00000010-1.0", "--output", to).exit_code == 0
    again = ckpt("export", "--output", to)
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)
    both = ckpt("export", "--best", "--name", "00000010-1.0")
    assert (both.exit_code, "together with --best" in both.stderr) == (2, True)
    absent = ckpt("export", "--name", "7", "--output", str(tmp_path / "x.safetensors"))
    assert absent.exit_code == 2
    assert "There are: 00000010-1.0, 00000020-1.0" in absent.stderr


def test_a_damaged_checkpoint_is_not_exported(ckpt, run, tmp_path):
    (run.local_path(run.key) / "checkpoints" / "00000020-1.0" / "model.pt").write_bytes(b"")
    result = ckpt("export", "--output", str(tmp_path / "x.safetensors"))
    assert result.exit_code == 4
    assert "Checkpoint 00000020-1.0 can be exported only with all files of its manifest.\n" in result.output
    assert "--name" in result.output
    assert not (tmp_path / "x.safetensors").exists()


FOREIGN = {
    "module": (torch.nn.Linear(2, 2), "cannot be loaded: UnpicklingError: Weights only load failed"),
    "empty": (b"", "cannot be loaded: EOFError"),
    "tensor": (torch.ones(2), "contains a Tensor, not a dict of tensors"),
    "nested": ({"model": {"a": torch.ones(1)}}, "contains 'model', which is dict, not a tensor"),
    "sparse": ({"a": torch.eye(3).to_sparse()}, "cannot be stored as safetensors: unsupported memory format"),
    "name": ({"\ud800": torch.ones(2)}, "cannot be stored as safetensors: 'utf-8' codec can't encode"),
}


@pytest.mark.parametrize("of", FOREIGN)
def test_the_model_of_another_program_is_refused_with_what_it_is(ckpt, run, tmp_path, of):
    content, what = FOREIGN[of]
    is_bytes = type(content) is bytes
    commit(run.checkpoints, 30, lambda file: file.write(content) if is_bytes else torch.save(content, file))
    to = tmp_path / "out" / "x.safetensors"
    result = ckpt("export", "--output", str(to))
    assert result.exit_code == 2, result.exception
    first, second = result.stderr.splitlines()
    assert first.startswith(f"error: model.pt of checkpoint 00000030-1.0 {what}") and len(first) < 300
    assert first.isprintable()
    assert second.startswith("safetensors stores dense tensors, each with a name: save the model as state=")
    assert not to.parent.exists() or list(to.parent.iterdir()) == []


@pytest.mark.parametrize(("umask", "modes"), [(0o022, (0o755, 0o644)), (0o007, (0o770, 0o660))])
def test_exported_files_and_their_folder_follow_the_umask(ckpt, tmp_path, umask, modes):
    before = os.umask(umask)
    try:
        assert ckpt("export", "--output", str(tmp_path / "out" / "digits.safetensors")).exit_code == 0
    finally:
        os.umask(before)
    of_folder, of_file = modes
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == of_folder
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert found == {"digits.safetensors": of_file, "digits.json": of_file}


def test_an_export_that_cannot_be_written_leaves_no_file(ckpt, tmp_path):
    """As on a full disk: no file may have more than 100 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        result = ckpt("export", "--output", str(tmp_path / "out" / "digits.safetensors"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.exit_code == 4, result.output
    assert "cannot be written" in result.stderr
    assert list((tmp_path / "out").iterdir()) == []


def keep_best(run, mode, metric="accuracy"):
    """The job of the run, as its newest attempt recorded it."""
    sections = {"name": "digits", "function": "m:f", "checkpoint": {"every": {"steps": 10}}}
    if mode:
        sections["checkpoint"]["keep_best"] = {"metric": metric, "mode": mode}
    record_job(run.newest_attempt(), parse_job(yaml.safe_dump(sections), "job.yaml"))


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_one_is_marked_and_exported(ckpt, run, tmp_path, mode):
    best, value = {"min": ("00000010-1.0", 0.1), "max": ("00000020-1.0", 0.2)}[mode]
    keep_best(run, mode)
    (marked,) = [line for line in ckpt("ls").output.splitlines() if "best" in line]
    assert marked.split()[0] == best
    assert marked.endswith(f"accuracy {value}  (best: accuracy {value})")
    assert ckpt("export", "--best", "--output", str(tmp_path / "best.safetensors")).exit_code == 0
    assert json.loads((tmp_path / "best.json").read_text())["checkpoint"] == best
    result = ended(run.newest_attempt(), "done", "finished")
    assert result.best == BestCheckpoint(best, "accuracy", value)
    assert dict(summary_rows(run, result))["best"] == f"{best}, accuracy {value}"
    write_result(run.newest_attempt(), result)
    assert run.newest_attempt().result.read() == result


@pytest.mark.parametrize(
    ("mode", "said"),
    [(None, "no checkpoint.keep_best"), ("max", "finite value of acuracy.*\nTheir metrics are: accuracy")],
)
def test_without_a_value_of_its_metric_none_is_the_best(ckpt, run, tmp_path, mode, said):
    keep_best(run, mode, "acuracy")
    assert "best" not in ckpt("ls").output
    result = ckpt("export", "--best", "--output", str(tmp_path / "best.safetensors"))
    assert result.exit_code == 2
    assert re.search(said, result.stderr)
    assert ended(run.newest_attempt(), "done", "finished").best is None


def test_ls_of_a_run_whose_job_this_version_does_not_accept(ckpt, run):
    run.store.write_atomic(run.job_key, b"name: digits\nfunction: m:f\nnew_key: 1\n")
    *_, second, note = ckpt("ls").output.splitlines()
    assert second.startswith("00000020-1.0")
    assert note.startswith("note: the best checkpoint is unknown: ")


@pytest.mark.parametrize("name", ["model.pt", "MANIFEST.json"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_pipe_or_a_device_in_a_checkpoint_is_damage(run, ckpt, name, make):
    """Both would never end."""
    path = run.local_path(run.checkpoints.file_key("00000010-1.0", name))
    path.unlink()
    make(path)
    for command in ("ls", "verify"):
        done = ckpt(command)
        if command == "verify" or name == "MANIFEST.json":
            assert "not a regular file" in done.output
    assert done.exit_code == 4
    assert "00000020-1.0  whole" in done.output


def test_the_files_of_a_script_on_s3_have_their_size_and_time(moto_s3):
    run = RunDir.newest(moto_s3.location("runs"), "digits")
    run.store.write_atomic(run.job_key, b"name: digits\nscript: train.py\n")
    for name in ("epoch_1/model.pt", "last.pt"):
        run.store.write_atomic(f"{run.checkpoints.key}/{name}", bytes(len(name)))
    files, _ = checkpoints.checkpoints_of(run)
    assert {each.name: each.size_bytes for each in files} == {"epoch_1/model.pt": 16, "last.pt": 7}
    assert all(abs(each.written_at - time.time()) < 600 for each in files)


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_a_checkpoint_that_the_run_removes_while_it_is_read_is_not_damaged(ckpt, run, monkeypatch, command):
    def removed_first(shelf, name):
        shutil.rmtree(run.local_path(f"{run.checkpoints.key}/{name}"), ignore_errors=True)
        return read_manifest(shelf, name)

    monkeypatch.setattr(checkpoints, "read_manifest", removed_first)
    monkeypatch.setattr(read, "read_manifest", removed_first)
    done = ckpt(command)
    assert (done.exit_code, "damaged" in done.output) == (0, False), done.output


def test_the_answer_to_save_is_a_checkpoint_written_after_the_request(run, monkeypatch):
    """Also of a start that has resumed and has not finished a step yet."""

    def saved_meanwhile(look, within_s, poll_s, is_met):
        assert not is_met(look())
        commit(run.checkpoints, 21)
        return look()

    EventLog(run.newest_attempt().events).write("group_started", restart=0, world_size=2, ranks=[])
    monkeypatch.setattr(commands, "wait_until", saved_meanwhile)
    assert [*commands.save_now(run)] == [str(names(run.checkpoints)[-1])]
    assert names(run.checkpoints)[-1].step == 21
