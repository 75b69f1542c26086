"""Training on WebDataset shards: split among ranks and processes, resumed exactly; torn or too few shards."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from clustertrain import Shards
from clustertrain.errors import DataError, JobError
from clustertrain.training.data.shard_order import Dealing
from clustertrain.training.data.shards import set_opener
from clustertrain.training.data.tar_shard import open_local
from clustertrain.training.rehearsal import rehearse
from clustertrain.training.settings import SaveEvery, TrainSettings
from training.ranks import ALONE
from training.streamed import OnShards, write_shard, write_shards
from training.tasks import run_task, same

pytest.importorskip("webdataset", reason="the extra webdataset is not installed")
SETTINGS = TrainSettings(epochs=2, batch_size=3, seed=3, save_every=SaveEvery(steps=1))
CPU = torch.device("cpu")
COUNTS = [7, 12, 3, 9, 11, 8]  # 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), COUNTS)


def test_a_resume_is_bit_identical_with_any_number_of_loader_processes(ranks, folder):
    group = ranks(2)
    whole = group.results(run_task, OnShards(folder), SETTINGS)
    middle = 5
    assert whole[0].state(middle)["position"]["offset"] > 0, "the middle of an epoch"
    for processes in (0, 2):
        settings = replace(SETTINGS, loader_workers=processes)
        resumed = group.results(run_task, OnShards(folder), settings, whole[0].saves[middle])
        end = whole[0].result.step
        assert same(resumed[0].state(end), whole[0].state(end))
        for before, after in zip(whole, resumed, strict=True):
            assert before.ids[middle:] == after.ids
    for epoch in range(2):
        part = slice(epoch * 9, (epoch + 1) * 9)
        assert Counter(i for rank in whole for ids in rank.ids[part] for i in ids) == Counter(range(50))


class Ordered(OnShards):
    """Its metric takes all samples."""

    def eval_step(self, model, batch):
        x, y, ids = batch
        return functional.mse_loss(model(x), y), ids, None

    def metrics(self):
        return {"is_in_order": lambda ids, _: float(torch.equal(ids, torch.arange(50)))}


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_metric_of_all_samples_gets_them_in_the_order_of_the_data_set(ranks, folder, world_size):
    outcome = ranks(world_size).results(run_task, Ordered(folder), replace(SETTINGS, epochs=1))[0]
    assert outcome.result.metrics["is_in_order"] == 1


def test_another_number_of_ranks_uses_the_samples_that_are_left(ranks, folder):
    settings = replace(SETTINGS, epochs=1, batch_size=None, global_batch_size=6)
    first = ranks(2).results(run_task, OnShards(folder), settings)
    rest = run_task(ALONE, OnShards(folder), settings, first[0].saves[4])
    seen = [i for rank in first for ids in rank.ids[:4] for i in ids] + [i for ids in rest.ids for i in ids]
    assert sorted(seen) == list(range(50))


class Opened:
    """Opens local shards, and counts the bytes that were read of each."""

    def __init__(self):
        self.bytes = Counter()

    def __call__(self, name):
        file = open_local(name)
        read = file.read

        def counted(size=-1, /):
            data = read(size)
            self.bytes[Path(name).name] += len(data)
            return data

        wrapped = io.BytesIO()
        wrapped.read, wrapped.close = counted, file.close
        return wrapped


@pytest.fixture
def opened():
    opener = Opened()
    set_opener(opener)
    yield opener
    set_opener(open_local)


def test_a_resume_does_not_read_the_shards_that_it_has_finished(folder, opened):
    settings = replace(SETTINGS, epochs=1)
    index = {f"part-{i:03d}.tar": count for i, count in enumerate(COUNTS)}
    task = OnShards(folder, index=index, shuffle=0)
    task.eval_data = lambda data: None
    whole = run_task(ALONE, task, settings)
    assert set(opened.bytes) == set(index) and opened.bytes["part-001.tar"] < 2 * 20480
    assert sorted(i for ids in whole.ids for i in ids) == list(range(50))
    opened.bytes.clear()
    run_task(ALONE, task, settings, whole.saves[16])
    assert sum(opened.bytes.values()) > 0 and len(opened.bytes) == 1, (
        "48 samples of five shards were consumed"
    )


def test_an_evaluation_counts_every_sample_once_and_a_limit_takes_some_of_each_shard(ranks, folder):
    task, settings = OnShards(folder, shuffle=0), replace(SETTINGS, epochs=1, save_every=SaveEvery())
    shards = task.train_data({})
    assert shards.in_order(10).used == (1, 2, 1, 2, 2, 2)
    ids = [i for rank in range(2) for i in shards.in_order(10).evaluation(rank, Dealing(2, 5)).take(5)]
    assert len(ids) == 10 and sorted(ids)[:3] == [0, 7, 8]
    assert [sample[2] for sample in shards.__getitems__(ids)] == ids
    for limit in (None, 2):
        limited = replace(settings, limit_batches=limit)
        outcomes = ranks(2).results(run_task, task, replace(limited, loader_workers=2))
        assert outcomes[0].result.metrics["loss"] > 0
        assert rehearse(task, limited, CPU, {}, world_size=2) == ("loss",)


def test_more_ranks_than_shards_are_refused_before_the_first_step(folder):
    with pytest.raises(JobError) as error:
        rehearse(OnShards(folder), replace(SETTINGS, batch_size=1), CPU, {}, world_size=7)
    assert str(error.value).startswith("7 workers are to read 6 shards, such as ")
    assert "7 > 6.\nWrite the data as at least 7 shards, or set resources.workers to at most 6." in str(
        error.value
    )


def cut(path: Path, size: int) -> Path:
    path.write_bytes(path.read_bytes()[:size])
    return path


@pytest.mark.parametrize(("kept", "position"), [(2560, 2560), (2048, 2048), (2900, 2900), (100, 100)])
def test_a_torn_shard_is_an_error_before_the_first_step(tmp_path, kept, position):
    """Cut between two files of a sample, between two samples, in a file's header and in the first header."""
    write_shards(tmp_path, [4, 4])
    torn = cut(tmp_path / "part-001.tar", kept)
    with pytest.raises(DataError) as error:
        run_task(ALONE, OnShards(tmp_path), SETTINGS)
    assert str(error.value).startswith(f"The shard {torn} is torn at byte ")
    assert "Copy or write the shard again, and continue the run." in str(error.value)
    assert int(str(error.value).split("byte ")[1].partition(":")[0]) <= position


@pytest.mark.slow
@pytest.mark.parametrize("kept", [2560, 2048])
def test_with_an_index_the_sample_at_the_cut_is_not_used(tmp_path, kept):
    write_shards(tmp_path, [4, 4])
    cut(tmp_path / "part-001.tar", kept)
    (tmp_path / "index.json").write_text(
        json.dumps({"shardlist": [{"url": f"part-00{i}.tar", "nsamples": 4} for i in range(2)]})
    )
    task = OnShards(tmp_path, shuffle=0)
    for processes in (0, 1):
        with pytest.raises(DataError, match=r"part-001\.tar is torn at byte \d+: ") as error:
            run_task(ALONE, task, replace(SETTINGS, batch_size=1, loader_workers=processes))
        assert "Traceback" not in str(error.value)
    used = [i for ids in task.ids for i in ids]
    assert set(used) <= {0, 1, 2, 3, 4}, "sample 5 has a file only if the tar goes on"


def test_a_torn_shard_is_an_error_on_every_rank(ranks, tmp_path):
    write_shards(tmp_path, [4, 4, 4])
    cut(tmp_path / "part-001.tar", 2000)
    answers = ranks(2).call(run_task, OnShards(tmp_path), SETTINGS)
    assert [type(answer) for answer in answers] == [DataError, DataError]
    assert str(answers[0]).partition("\n")[0] == str(answers[1]).partition("\n")[0]


@pytest.mark.parametrize(
    ("said", "text"), [(3, "more samples than the 3"), (5, "has 4 samples; its index has 5")]
)
def test_an_index_with_a_wrong_number_is_an_error(tmp_path, said, text):
    write_shards(tmp_path, [4])
    shards = Shards(tmp_path, index={"part-000.tar": said})
    with pytest.raises(DataError, match=text):
        shards.__getitems__(range(said))


def test_an_index_names_the_shards_beside_it_and_a_pattern_names_several(folder, tmp_path):
    index = tmp_path / "all.json"
    url = str(folder / "part-001.tar")
    index.write_text(json.dumps({"shardlist": [{"url": url, "nsamples": 12}]}))
    assert (Shards(index).names, len(Shards(index))) == ([url], 12)
    assert len(Shards(f"{folder}/part-{{000..002}}.tar")) == 7 + 12 + 3
    for text in ("[]", '{"shardlist": []}', '{"shardlist": [{"url": "a"}]}', "{", '{"shardlist": 3}'):
        index.write_text(text)
        with pytest.raises(DataError, match="is no index of shards"):
            Shards(index)


def test_an_index_of_two_folders_may_have_a_file_name_twice(tmp_path):
    folders = [write_shards(tmp_path / name, [count]) for name, count in (("a", 2), ("b", 3))]
    entries = [{"url": f"{name}/part-000.tar", "nsamples": count} for name, count in (("a", 2), ("b", 3))]
    (tmp_path / "all.json").write_text(json.dumps({"shardlist": entries}))
    assert Shards(folders, index=tmp_path / "all.json").counts == [2, 3]


def test_what_names_no_shard_or_no_numbers_is_refused(folder, tmp_path):
    with pytest.raises(JobError, match=r"has no file \*\.tar"):
        Shards(tmp_path)
    with pytest.raises(JobError, match=r"samples of 3 of 3 shards is not known, such as s3://b/0\.tar"):
        Shards("s3://b/{0..2}.tar")
    with pytest.raises(DataError, match="The index has no number for 5 of 6 shards"):
        Shards(folder, index={"part-000.tar": 7})
    with pytest.raises(DataError, match="cannot be opened: No such file"):
        len(Shards(tmp_path / "none.tar"))
    with pytest.raises(JobError, match=r"^https://x/a\.tar is not a local file, and this process has no"):
        Shards("https://u:p@x/a.tar", index={"a.tar": 1})[0]


def test_samples_are_decoded_and_pickles_are_not_loaded(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, data in (("0.txt", b"text"), ("0.cls", b"3"), ("0.own", b"ab")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress((tmp_path / "a.tar").read_bytes()))
    own = Shards(tmp_path / "a.tar.gz", decode=lambda key, data: data * 2 if key == ".own" else None)
    assert {key: own[0][key] for key in ("txt", "cls", "own")} == {"txt": "text", "cls": 3, "own": b"abab"}
    assert Shards(tmp_path / "a.tar", decode=None)[0]["cls"] == b"3"
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        member = tarfile.TarInfo("0.pkl")
        tar.addfile(member, io.BytesIO())
    with pytest.raises(DataError, match=r"pkl of sample 0 in .*cannot be decoded: .*a pickle can run code"):
        Shards(tmp_path / "b.tar")[0]


def test_a_missing_package_is_named(monkeypatch, folder):
    monkeypatch.setitem(__import__("sys").modules, "webdataset", None)
    with pytest.raises(JobError, match=r"Install it: pip install 'webdataset>=1,<2'"):
        Shards(folder)


def test_a_shard_without_samples_is_an_error(tmp_path):
    write_shard(tmp_path / "a.tar", 0, 0)
    with pytest.raises(DataError, match="has no sample"):
        len(Shards(tmp_path))
