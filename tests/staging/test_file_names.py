"""A staged file has the name that its source has: spaces, letters of any alphabet, percent signs."""

from urllib.parse import quote

import pytest

from clustertrain.staging.entry import StagedData
from clustertrain.staging.stage import stage
from clustertrain.storage.location import Location

BODY = b"content"
NAMES = ("größe datei.txt", "データ.csv", "100% a%20b.txt", ".hidden", "a#b?c&d'e\"f\\g.txt", "emoji 🎈.bin")


def staged(uri, folder, extract=False):
    return stage("d", Location(str(uri)), sha256=None, extract=extract, into=folder / "data")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_keeps_its_name(job, web, tmp_path, name):
    """By its path, in a job file too, by its file URI and from a server."""
    source = tmp_path / "source" / name
    source.parent.mkdir()
    source.write_bytes(BODY)
    web.files[f"/a/{quote(name)}"] = BODY
    by_job = job(data={"d": {"uri": str(source)}}).data_location("d").uri
    for number, uri in enumerate((source, by_job, source.as_uri(), f"{web.url}/a/{quote(name)}")):
        path = staged(uri, tmp_path / str(number))
        assert path.name == name
        assert path.read_bytes() == BODY
        assert [each.name for each in path.parent.iterdir()] == [name]


@pytest.mark.parametrize("name", ["größe datei.txt", "100% sure.txt"])
def test_a_url_may_be_written_without_percent_encoding(web, tmp_path, name):
    web.files[f"/ö/{quote(name)}".replace("ö", quote("ö"))] = BODY
    path = staged(f"{web.url}/ö/{name}?größe=1", tmp_path)
    assert (path.name, path.read_bytes()) == (name, BODY)


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("https://h/f%2e%2e?x=/../y", "f.."),
        ("https://h/", "data"),
        ("https://h/%2e%2e", "data"),
        ("https://h/a%2Fb%0Ac", "a_b_c"),
        ("s3://b/a/x%20y", "x%20y"),
    ],
)
def test_what_no_file_name_can_be_is_replaced(tmp_path, uri, name):
    assert StagedData.of(Location(uri), "0" * 64, False, tmp_path).file_name == name
