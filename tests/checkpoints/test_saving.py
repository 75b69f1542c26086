"""Saves without stopping the loop: what is saved is what was there when `save` was called."""

import resource
import sys
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from clustertrain.checkpoints import save as save_module
from clustertrain.checkpoints.manifest import names
from clustertrain.checkpoints.pinned import PinnedMemory
from clustertrain.checkpoints.read import verify
from clustertrain.checkpoints.retention import Retention
from clustertrain.checkpoints.save import MODEL_FILE, TRAINING_FILE, Saver, copy_to_host, load
from clustertrain.checkpoints.write import StaleWriter, Writer
from clustertrain.errors import JobError, StorageError
from clustertrain.storage import posix, posix_tree
from clustertrain.training.ranks.host import SaveProgress
from support.commands import ran
from support.sample_checkpoints import shelf_at


class Told:
    """The calls of the saver's callbacks."""

    def __init__(self):
        self.saved, self.failed = [], []


def saver(folder, *, background=True, still_newest=lambda: True):
    told = Told()
    writer = Writer(shelf_at(folder), 1, 0, "0" * 64, {}, Retention(), still_newest)
    made = Saver(
        writer,
        background=background,
        on_saved=lambda **fields: told.saved.append(fields),
        on_failed=told.failed.append,
    )
    return made, told


def progress(step):
    return SaveProgress(step, epoch=0, samples_seen=step, world_size=1, metrics={}, reason="every")


def state(value=1.0):
    return {
        "model": {"w": torch.full((4, 3), value), "half": torch.full((2,), value, dtype=torch.bfloat16)},
        "optimizer": {"state": {0: {"exp_avg": torch.full((4, 3), value)}}, "lr": [value, (value, "text")]},
        "rng": torch.arange(5, dtype=torch.uint8),
        "step": int(value),
        "best": {np.int64(7): np.float64(value)},  # numbers of numpy are read as Python's
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("background", [True, False])
def test_what_is_saved_is_loaded(tmp_path, background):
    made, told = saver(tmp_path, background=background)
    made.save(state(), progress(3))
    made.finish()
    (name,) = names(shelf_at(tmp_path))
    verify(shelf_at(tmp_path), name)
    assert {p.name for p in (tmp_path / str(name)).iterdir()} == {
        MODEL_FILE,
        TRAINING_FILE,
        "MANIFEST.json",
    }
    assert same(load(tmp_path / str(name)), state())
    (fields,) = told.saved
    assert (fields["step"], fields["name"], fields["reason"]) == (3, "00000003-1.0", "every")
    assert 0 <= fields["blocking_s"] <= fields["write_s"]
    assert fields["bytes"] == sum(p.stat().st_size for p in (tmp_path / str(name)).iterdir())


def test_loading_runs_no_code(tmp_path):
    torch.save({"evil": Told}, tmp_path / TRAINING_FILE)
    with pytest.raises(Exception, match="Weights only load failed"):
        load(tmp_path)


def test_training_continues_during_the_write_and_does_not_change_it(tmp_path):
    """The write is held until the live tensors have changed; the checkpoint has the values from before."""
    trained_on = threading.Event()
    made, told = saver(tmp_path, still_newest=lambda: trained_on.wait(60))
    live = state(1.0)
    made.save(live, progress(1))
    for tensor in (*live["model"].values(), live["optimizer"]["state"][0]["exp_avg"]):
        tensor.fill_(99.0)
    live["step"] = 99
    live["optimizer"]["lr"][0] = 99.0
    assert told.saved == []
    trained_on.set()
    made.finish()
    assert same(load(tmp_path / "00000001-1.0"), state(1.0))


def test_a_save_that_comes_due_waits_for_the_one_before(tmp_path):
    gate, entered = threading.Event(), threading.Event()

    def held():
        entered.set()
        return gate.wait(60)

    made, told = saver(tmp_path, still_newest=held)
    made.save(state(1.0), progress(1))
    assert entered.wait(60)
    second = threading.Thread(target=made.save, args=(state(2.0), progress(2)))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    gate.set()
    second.join()
    made.finish()
    assert [fields["step"] for fields in told.saved] == [1, 2]
    assert told.saved[1]["blocking_s"] >= 0.1
    for step in (1, 2):
        assert same(load(tmp_path / f"0000000{step}-1.0"), state(float(step)))


def test_a_fenced_save_ends_the_training(tmp_path):
    made, told = saver(tmp_path, still_newest=lambda: False)
    made.save(state(), progress(1))
    made._join()
    with pytest.raises(StaleWriter):
        made.check()
    with pytest.raises(StaleWriter):
        made.save(state(), progress(2))
    with pytest.raises(StaleWriter):
        made.finish()
    assert told.saved == []
    assert list(tmp_path.iterdir()) == []


def test_older_checkpoints_that_cannot_be_removed_are_reported_and_fail_no_save(tmp_path, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(posix, "remove_tree", refuse)
    made, told = saver(tmp_path)
    for step in range(1, 8):
        made.save(state(), progress(step))
    made.finish()
    assert len(told.saved) == 7
    assert len(told.failed) == 4
    assert all("cannot be removed" in text for text in told.failed)


@pytest.mark.parametrize("background", [True, False])
def test_training_survives_a_save_that_fails_and_not_three(tmp_path, background):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    made, told = saver(folder, background=background)

    def spoil():
        folder.rmdir()
        folder.write_text("in the way")

    def repair():
        folder.unlink()
        folder.mkdir()

    spoil()
    made.save(state(), progress(1))
    made._join()
    made.check()
    assert len(told.failed) == 1
    assert "step 1 was not written" in told.failed[0]
    repair()
    made.save(state(), progress(2))  # one that succeeds: the count begins again
    made._join()
    assert [fields["step"] for fields in told.saved] == [2]
    made.finish()
    for path in (folder / "00000002-1.0").iterdir():
        path.unlink()
    (folder / "00000002-1.0").rmdir()
    spoil()
    with pytest.raises(StorageError) as failure:
        for step in (3, 4, 5, 6):
            made.save(state(), progress(step))
    assert [text.split()[4] for text in told.failed] == ["1", "3", "4", "5"]
    assert failure.value.exit_code == 4
    assert "Free space or make it writable" in str(failure.value)
    with pytest.raises(StorageError):
        made.finish()


def test_the_error_of_the_disk_is_reported_instead_of_that_of_torch(tmp_path):
    """The limit on file sizes fails the write of a tensor, as a full disk does."""
    made, told = saver(tmp_path, background=False)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        made.save({"model": {"w": torch.zeros(1 << 20)}}, progress(1))
        made._join()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (text,) = told.failed
    assert "File too large: 4194304 bytes did not fit after the first" in text
    assert "Checkpoint 00000001-1.0 could not be written" in text
    assert list(tmp_path.iterdir()) == []
    made.save({"model": {"w": torch.zeros(1 << 20)}}, progress(2))
    made.finish()
    assert [fields["step"] for fields in told.saved] == [2]


class Devices:
    """torch.cuda's current device, which each thread has for itself: GPU 0 if it sets none."""

    def __init__(self, monkeypatch):
        self._own = threading.local()
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", self.current)
        monkeypatch.setattr(torch.cuda, "set_device", self.set)
        monkeypatch.setattr(torch.cuda, "device", self.within)

    def current(self):
        return getattr(self._own, "device", 0)

    def set(self, device):
        self._own.device = device

    @contextmanager
    def within(self, device):
        before = self.current()
        self.set(device)
        yield
        self.set(before)


def test_every_thread_of_a_rank_uses_the_gpu_of_the_rank(tmp_path, monkeypatch):
    """A context on GPU 0 would take 0.5 GB from rank 0 for each other rank of the node."""
    devices, used = Devices(monkeypatch), []

    def copied(state, *args, **options):
        used.append((threading.current_thread().name, devices.current()))
        return copy_to_host(state, *args, **options)

    dump = torch.save

    def dumped(*args):
        used.append((threading.current_thread().name, devices.current()))
        dump(*args)

    monkeypatch.setattr(save_module, "copy_to_host", copied)
    monkeypatch.setattr(torch, "save", dumped)
    devices.set(3)
    made, _ = saver(tmp_path)
    made.reserve(state())
    made.save(state(), progress(1))
    made.finish()
    threads = {name for name, _ in used}
    assert {"checkpoint-buffers", "checkpoint", threading.current_thread().name} == threads
    assert {device for _, device in used} == {3}


def test_memory_that_cuda_does_not_pin_is_named_once_and_the_save_is_whole(tmp_path, monkeypatch):
    def copied(state, buffers, refused, **_):
        refused("CUDA error: out of memory")
        return copy_to_host(state, buffers)

    monkeypatch.setattr(save_module, "copy_to_host", copied)
    made, told = saver(tmp_path)
    for step in (1, 2):
        made.save(state(), progress(step))
    made.finish()
    (warning,) = told.failed
    assert warning.startswith("CUDA does not pin the host memory for saves (CUDA error: out of memory)")
    assert len(told.saved) == 2


def test_pinned_memory_is_released_on_its_own_gpu_by_whichever_thread_frees_it(monkeypatch):
    devices, released = Devices(monkeypatch), []
    devices.set(3)
    memory = PinnedMemory(lambda address, size: None, lambda address: released.append(devices.current()))
    kept = [memory.empty_like(torch.empty(9 << 20, dtype=torch.uint8))]
    other = threading.Thread(target=kept.clear)  # its current device is GPU 0
    other.start()
    other.join()
    assert released == [3]


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize(
    ("rest", "named"),
    [
        ({"lock": threading.Lock()}, r"state\.lock is of the type _thread\.lock"),
        (
            {"model": {"b": torch.ones(2)}, "log": [1, np.ones(2)]},
            r"state\.log\.1 is of the type numpy\.ndarray",
        ),
        ({"best": {Path("a"): 0.5}}, r"state\.best\.key a is of the type pathlib\."),
    ],
)
def test_a_state_that_no_resume_could_read_is_not_passed_over(tmp_path, background, rest, named):
    made, told = saver(tmp_path, background=background)
    with pytest.raises(JobError, match=named):
        made.save(rest, progress(1))
        made._join()
        made.check()
    assert len(told.failed) == 1
    assert list(tmp_path.iterdir()) == []


TIED, ZEROS, ONES = torch.rand(3, 3), torch.zeros(3, 3), torch.ones(3, 3)
BASE = torch.arange(6.0)


@pytest.mark.parametrize("threads", [1, 3])
class TestCopies:
    @pytest.fixture
    def copied(self, threads):
        return partial(copy_to_host, threads=threads)

    def test_a_copy_shares_nothing_and_leaves_the_number_of_threads(self, copied):
        live, before = state(), torch.get_num_threads()
        copy = copied(live)
        live["model"]["w"].zero_()
        live["optimizer"]["lr"].append(1)
        assert same(copy, state())
        assert torch.get_num_threads() == before

    def test_the_memory_of_the_last_copy_is_used_again(self, copied):
        first = copied(state(1.0))
        places = {name: tensor.data_ptr() for name, tensor in first["model"].items()}
        second = copied(state(2.0), first)
        assert {name: tensor.data_ptr() for name, tensor in second["model"].items()} == places
        assert same(second, state(2.0))

    @pytest.mark.parametrize(
        ("before", "live"),
        [
            # of another shape or type
            ({"a": torch.zeros(4)}, {"a": torch.ones(5)}),
            ({"a": torch.zeros(4)}, {"a": torch.ones(2, 2)}),
            ({"a": torch.zeros(4)}, {"a": torch.ones(4, dtype=torch.float64)}),
            ({"a": torch.zeros(4)}, {"a": torch.tensor(1.0)}),
            # no longer tied, newly tied, tied by a view
            ({"embedding": TIED, "head": TIED}, {"embedding": ZEROS, "head": ONES}),
            ({"embedding": ZEROS, "head": ONES}, {"embedding": TIED, "head": TIED}),
            ({}, {"embedding": TIED, "head": TIED.detach()}),
            # views of one storage that differ
            (
                {},
                {
                    "all": BASE,
                    "front": BASE[:3],
                    "back": BASE[3:],
                    "t": BASE.view(2, 3).t(),
                    "every": BASE[::2],
                    "each": BASE[:1].expand(4),
                },
            ),
            # other orders of the same values, and values that are not the bytes
            ({"a": torch.zeros(2, 3)}, {"a": BASE.view(3, 2).t()}),
            ({}, {"images": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)}),
            ({}, {"conj": (BASE + 1j).conj(), "neg": (BASE + 1j).conj().imag}),
            # two places whose paths are written alike
            ({}, {"a.b": ZEROS, "a": {"b": ONES}}),
            ({"a.b": ZEROS, "a": {"b": ONES}}, {"a.b": TIED, "a": {"b": ZEROS}}),
        ],
    )
    def test_a_copy_into_the_memory_of_another_is_right(self, copied, before, live):
        copy = copied(live, copied(before))
        assert same(copy, {k: v if isinstance(v, dict) else v.clone() for k, v in live.items()})
        if "head" in live:
            assert (copy["embedding"] is copy["head"]) == (
                live["head"].data_ptr() == live["embedding"].data_ptr()
            )


def test_a_write_shows_its_bytes_while_it_goes_on(tmp_path, monkeypatch):
    """A tensor is one call of torch; it is written in pieces, and the write stops after the second."""
    monkeypatch.setattr(posix_tree, "PIECE_BYTES", 1000)
    two_written, go_on = threading.Event(), threading.Event()
    made, _ = saver(tmp_path)
    write_piece = posix_tree._HashingFile._write_piece

    def written(file, piece):
        write_piece(file, piece)
        if file.size_bytes >= 2000:
            two_written.set()
            assert go_on.wait(60)

    monkeypatch.setattr(posix_tree._HashingFile, "_write_piece", written)
    assert made.wait(0) is None
    made.save({"mine": torch.zeros(10_000, dtype=torch.uint8)}, progress(1))
    assert two_written.wait(60)
    assert 2000 <= made.wait(0) < 5000
    go_on.set()
    while made.wait(60) is not None:
        pass
    made.finish()
    assert same(load(tmp_path / "00000001-1.0"), {"mine": torch.zeros(10_000, dtype=torch.uint8)})


def test_without_background_the_wait_is_left_to_the_caller_and_counts(tmp_path):
    gate = threading.Event()
    made, told = saver(tmp_path, background=False, still_newest=lambda: gate.wait(60))
    made.save(state(), progress(1))
    assert made.wait(0) is not None
    gate.set()
    made.finish()
    (fields,) = told.saved
    assert fields["blocking_s"] == fields["write_s"]


MEMORY_OF_A_LOAD = """
import sys
from pathlib import Path
from clustertrain.checkpoints.save import load

def anonymous_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

before = anonymous_bytes()
state = load(Path(sys.argv[1]))
assert state["model"]["w"].sum() + state["optimizer"][0].sum() == 2 * (32 << 20)
print(anonymous_bytes() - before)
"""


@pytest.mark.slow
def test_a_loaded_checkpoint_takes_no_memory_of_its_own(tmp_path):
    """256 MiB are read through; the pages belong to the files, and are shared by all ranks of a node."""
    made, _ = saver(tmp_path)
    made.save({"model": {"w": torch.ones(32 << 20)}, "optimizer": [torch.ones(32 << 20)]}, progress(1))
    made.finish()
    done = ran([sys.executable, "-c", MEMORY_OF_A_LOAD, str(tmp_path / "00000001-1.0")], code=0, timeout=300)
    assert int(done.stdout) < 32 << 20


def test_what_is_loaded_may_be_changed_and_the_file_stays(tmp_path):
    made, _ = saver(tmp_path)
    made.save(state(), progress(1))
    made.finish()
    load(tmp_path / "00000001-1.0")["model"]["w"].zero_()
    verify(shelf_at(tmp_path), "00000001-1.0")
    assert same(load(tmp_path / "00000001-1.0"), state())
