"""Shards on a web server and on S3: resumed after a cut, refused if torn; the command for an index."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from clustertrain.errors import DataError
from clustertrain.job.file import parse_job
from clustertrain.staging import source
from clustertrain.storage.location import Location
from clustertrain.training.data.shards import Shards, set_opener
from clustertrain.training.data.tar_shard import open_local
from clustertrain.worker.code.build_task import make_task
from clustertrain.worker.data import shard_index, shard_source
from clustertrain.worker.data.shard_source import ShardOpener
from liars import server
from training.streamed import Regression, write_shards
from web import Answer, serving

pytest.importorskip("webdataset", reason="the extra webdataset is not installed")
COUNTS = [30, 30]
INDEX = {f"part-00{i}.tar": count for i, count in enumerate(COUNTS)}


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_shards(tmp_path / "shards", COUNTS)


@pytest.fixture
def reading(monkeypatch):
    """`reading(location)`: shards are opened as in a worker of a job with this storage."""
    monkeypatch.setattr(source, "BACKOFF_S", 0.01)
    yield lambda location: set_opener(ShardOpener(location))
    set_opener(open_local)


@pytest.fixture
def web(folder):
    with serving() as web:
        web.files |= {f"/{path.name}": path.read_bytes() for path in folder.iterdir()}
        yield web


def ids(shards):
    return [sample["id"] for sample in shards.__getitems__(range(len(shards)))]


def test_shards_of_a_web_server_are_read_once_and_resumed_after_a_cut(web, reading):
    reading(Location("runs"))
    shards = Shards(f"{web.url}/part-{{000..001}}.tar", index=INDEX)
    web.answers = [Answer(cut_after=5000), Answer(cut_after=3000)]
    assert ids(shards) == list(range(60))
    assert web.ranges == [None, "bytes=5000-", "bytes=8000-", None]


def test_a_shard_that_the_server_compresses_is_read_whole(reading, folder):
    """A block may decompress to nothing yet: here each byte is one."""
    packed = gzip.compress((folder / "part-000.tar").read_bytes())
    blocks = [b"1\r\n%c\r\n" % byte for byte in packed[:12]]
    blocks.append(b"%x\r\n%s\r\n0\r\n\r\n" % (len(packed) - 12, packed[12:]))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    reading(Location("runs"))
    with server(lambda: [head, *blocks]) as (url, _):
        shards = Shards(url.removesuffix("/f") + "/part-000.tar", index=INDEX)
        assert ids(shards) == list(range(30))


def test_a_server_without_ranges_sends_the_bytes_again(web, reading):
    reading(Location("runs"))
    web.answers = [Answer(cut_after=5000), Answer(ignores_range=True)]
    assert ids(Shards(f"{web.url}/part-000.tar", index=INDEX)) == list(range(30))


def test_a_server_that_sends_another_range_sends_the_bytes_again(web, reading):
    reading(Location("runs"))
    web.answers = [Answer(cut_after=5000), Answer(shift=7)]
    assert ids(Shards(f"{web.url}/part-000.tar", index=INDEX)) == list(range(30))
    assert web.ranges == [None, "bytes=5000-", None]


def test_a_shard_that_always_ends_early_is_an_error_with_its_name_and_byte(web, reading, monkeypatch):
    monkeypatch.setattr(shard_source, "WEB_RETRY_S", 0.5)
    reading(Location("runs"))
    web.answers = [Answer(cut_after=5000), *[Answer(cut_after=0) for _ in range(1000)]]
    with pytest.raises(DataError) as error:
        ids(Shards(f"{web.url}/part-000.tar", index=INDEX))
    assert "part-000.tar cannot be fetched" in str(error.value) and "beyond byte 5000" in str(error.value)


def test_a_shard_that_changes_during_the_reading_is_an_error(web, reading):
    reading(Location("runs"))
    web.answers = [Answer(cut_after=5000), *[Answer(etag='"two"')] * 2]
    with pytest.raises(DataError, match="was cut after 5000 bytes, and the server cannot continue there"):
        ids(Shards(f"{web.url}/part-000.tar", index=INDEX))


def test_a_torn_file_on_a_web_server_is_named(web, reading):
    reading(Location("runs"))
    web.files["/part-000.tar"] = web.files["/part-000.tar"][:9000]
    with pytest.raises(DataError, match=r"The shard http://.*/part-000\.tar is torn at byte 9000: "):
        ids(Shards(f"{web.url}/part-000.tar", index=INDEX))


@pytest.mark.s3
def test_shards_on_s3_with_the_options_of_the_storage_and_their_index(versitygw_s3, folder, reading, capsys):
    s3 = versitygw_s3
    for path in folder.iterdir():
        s3.client().put_object(Bucket=s3.bucket, Key=f"data/{path.name}", Body=path.read_bytes())
    reading(s3.location("runs"))
    listed = [{"url": name, "nsamples": count} for name, count in INDEX.items()]
    body = json.dumps({"shardlist": listed}).encode()
    s3.client().put_object(Bucket=s3.bucket, Key="data/index.json", Body=body)
    shards = Shards(f"s3://{s3.bucket}/data/index.json")
    assert shards.names[1] == f"s3://{s3.bucket}/data/part-001.tar" and ids(shards) == list(range(60))
    with pytest.raises(DataError, match="there is no such object"):
        Shards(f"s3://{s3.bucket}/data/none.tar", index={"none.tar": 3})[0]


def test_the_index_of_a_folder_and_of_a_web_server_are_printed(folder, web, capsys):
    for given in (str(folder), f"{web.url}/part-{{000..001}}.tar"):
        assert shard_index.main([given]) == 0
        entries = json.loads(capsys.readouterr().out)["shardlist"]
        assert [(Path(each["url"]).name, each["nsamples"]) for each in entries] == list(INDEX.items())
    assert shard_index.main([f"{web.url}/none.tar"]) == 4
    assert "HTTP 404" in capsys.readouterr().err
    assert shard_index.main([]) == 2


def test_a_task_of_a_job_opens_shards_with_the_options_of_the_jobs_storage(reading):
    reading(Location("elsewhere"))
    job = parse_job(
        "{name: a, task: 'training.streamed:Regression', train: {epochs: 1, batch_size: 2}, "
        "storage: {uri: 's3://b/runs', endpoint: 'http://127.0.0.1:9', retry: 1s}}",
        "job.yaml",
    )
    make_task(Regression, job)
    opener = pickle.loads(pickle.dumps(Shards("s3://c/a.tar", index={"a.tar": 1})))._open
    assert opener.location_of("s3://c/a.tar") == replace(job.storage.location, uri="s3://c/a.tar")
    assert opener.location_of("https://x/a.tar") == Location("https://x/a.tar")
