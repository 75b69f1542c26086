"""docs/migrate.md has the tables of the import, and what the command prints."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.migrate.options import READS, table
from clustertrain.migrate.tables import with_tables

PAGE = Path(__file__).parents[2] / "docs" / "migrate.md"


def test_the_tables_are_those_of_the_import():
    page = PAGE.read_text("utf-8")
    assert page == with_tables(page), "python -m clustertrain.migrate.tables docs/migrate.md"


def test_every_table_is_on_the_page():
    source = (Path(READS["count"].__code__.co_filename).parent / "options.yaml").read_text()
    shown = ", ".join(re.findall(r"<!-- options of ([^:]*):", PAGE.read_text())).split(", ")
    names = re.findall(r"(?m)^([\w. ]+):$", source)
    assert len(names) > 10
    assert set(names) - set(shown) == {"conda run"}
    for name in names:
        for row in table(name):
            assert row.read in READS or not row.read
            assert (row.done == "" or row.lost == "") and (row.key or row.done or row.lost or row.read), row


def test_the_example_prints_what_the_page_shows(tmp_path, monkeypatch):
    page = PAGE.read_text()
    command = re.search(r"(?m)^    clustertrain (import -o - -- .*)$", page)[1]
    shown = re.search(r"```text\n(# From .*?)```\n", page, re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    done = CliRunner().invoke(main, shlex.split(command))
    assert done.output == shown
    assert not Path("job.yaml").exists()


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        ("slurm_time", "30", "30m"),
        ("slurm_time", "20:30", "20m30s"),
        ("slurm_time", "12:00:00", "12h"),
        ("slurm_time", "2-3", "2d3h"),
        ("slurm_time", "2-3:30", "2d3h30m"),
        ("slurm_time", "1-00:00:10", "1d10s"),
        ("slurm_time", "365-00:00:00", "365d"),
        ("slurm_time", "UNLIMITED", None),
        ("slurm_memory", "4000", 4000 * 2**20),
        ("slurm_memory", "64G", 64 * 2**30),
        ("slurm_memory", "1tb", 2**40),
        ("slurm_memory", "0", None),
        ("gpus", "gpu", {"": 1}),
        ("gpus", "gpu:2", {"": 2}),
        ("gpus", "gpu:a100:4", {"": 4, "slurm.gpu_type": "a100"}),
        ("gpus", "a100:4", {"": 4, "slurm.gpu_type": "a100"}),
        ("gpus", "a100", {"": 1, "slurm.gpu_type": "a100"}),
        ("count_or_range", "1:4", [1, 4]),
        ("count_or_range", "2-2", 2),
        ("hosts", "a:4,b:2", {"@nodes": 2, "@per_node": 2}),
        ("hosts", "a slots=8\nb slots=8\n", {"@nodes": 2, "@per_node": 8}),
        ("hosts", "a\nb\n", {"@nodes": 2}),
        ("lead_time", "B:USR1@120", "2m"),
        ("lead_time", "USR1", None),
        ("cpus", "500m", 0.5),
    ],
)
def test_values_are_read_as_the_other_launcher_reads_them(read, text, value):
    assert READS[read](text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        ("slurm_time", "1:2:3:4"),
        ("slurm_time", "a-1"),
        ("slurm_time", ""),
        ("slurm_memory", "much"),
        ("gpus", "gpu:a:b:1"),
        ("gpus", "gpu:0"),
        ("count_or_range", "4:1"),
        ("count", "0"),
        ("hosts", ""),
    ],
)
def test_other_values_are_refused(read, text):
    with pytest.raises(ValueError, match=r"."):
        READS[read](text)
