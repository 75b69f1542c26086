"""A memory snapshot is written when torch's allocator is out of memory, and never hides that error."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from clustertrain.driver.cause.gpu_diagnosis import SNAPSHOT
from clustertrain.training.measured.memory_snapshot import memory_snapshot

GPU = torch.device("cuda", 0)
PLACE = "s3://bucket/run/rank-0.pickle"


@pytest.fixture
def calls(monkeypatch):
    """The calls of torch.cuda.memory, on a machine without a GPU."""
    calls = []

    def dump(filename):
        calls.append("dump")
        Path(filename).write_bytes(pickle.dumps({"segments": []}))

    def record(enabled="all", **options):
        calls.append((enabled, options))

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", dump)
    return calls


BEGUN, ENDED = ("all", {"max_entries": 100_000}), (None, {})


def _exhausted(path, error=None):
    with memory_snapshot(True, GPU, lambda: (path, PLACE)):
        raise error or torch.OutOfMemoryError("CUDA out of memory.")


def test_the_file_is_written_and_the_error_names_it(calls, tmp_path):
    path = tmp_path / "memory" / "rank-0.pickle"
    with pytest.raises(torch.OutOfMemoryError) as caught:
        _exhausted(path)
    assert calls == [BEGUN, "dump", ENDED]
    assert pickle.loads(path.read_bytes()) == {"segments": []}
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    (note,) = caught.value.__notes__
    assert SNAPSHOT.search(f"OutOfMemoryError: CUDA\n{note}\nmore")[0] == note and note.endswith(f": {PLACE}")


def test_a_file_that_cannot_be_written_does_not_hide_the_error(calls, tmp_path):
    (tmp_path / "memory").write_text("a file where the folder should be")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        _exhausted(tmp_path / "memory" / "rank-0.pickle")
    (note,) = caught.value.__notes__
    assert "memory_viz: not written: FileExistsError: " in SNAPSHOT.search(note)[0]
    assert calls == [BEGUN, ENDED]


def test_another_error_writes_nothing(calls, tmp_path):
    with pytest.raises(ValueError, match="mine") as caught:
        _exhausted(tmp_path / "rank-0.pickle", ValueError("mine"))
    assert calls == [BEGUN, ENDED] and not hasattr(caught.value, "__notes__") and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("enabled", "device"), [(False, GPU), (True, torch.device("cpu"))])
def test_by_default_and_without_a_gpu_nothing_is_recorded(calls, enabled, device):
    with memory_snapshot(enabled, device, pytest.fail):
        pass
    assert calls == []
