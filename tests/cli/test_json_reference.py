"""docs/json.md agrees with what the commands print."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from clustertrain.cli.json_reference import OUTPUTS, json_markdown
from clustertrain.job.reference import MARK
from clustertrain.run.streams.events import KINDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "json.md").read_text("utf-8")
PRINTED = ROOT / "tests" / "fixtures" / "sample_runs" / "printed"


def test_the_reference_is_that_of_the_code():
    command = "python -m clustertrain.cli.json_reference docs/json.md"
    assert PAGE.partition(MARK)[2] == f"\n{json_markdown()}", (
        f"docs/json.md is stale; refresh it with: {command}"
    )


@pytest.mark.slow
def test_the_command_refreshes_the_reference_of_a_page(tmp_path):
    page = tmp_path / "json.md"
    page.write_text(PAGE.replace("| `attempt` |", "| `try` |"))
    subprocess.run([sys.executable, "-m", "clustertrain.cli.json_reference", str(page)], check=True)
    assert page.read_text("utf-8") == PAGE


def schemas():
    """The schemas that the page shows, by command."""
    found = re.findall(r"### `([^`]*) --json`\n\n[^\n]*\n\n```json\n(.*?)```", PAGE, re.DOTALL)
    return {command: json.loads(text) for command, text in found}


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("status", "finished.status"),
        ("status", "stopped.status"),
        ("ls", "ls"),
        ("ckpt ls", "stopped.ckpt-ls"),
    ],
)
def test_what_a_command_printed_fits_the_schema_of_the_page(command, file):
    assert schemas().keys() == OUTPUTS.keys()
    printed = json.loads((PRINTED / f"{file}.json").read_text())
    objects = printed if isinstance(printed, list) else [printed]
    jsonschema.validate(printed, schemas()[command])
    one = objects[0]
    del one["step"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(printed, schemas()[command])


def test_the_fields_of_events_and_metrics_are_in_the_table():
    for path in PRINTED.glob("*.logs.json"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            known = {"kind", "time", "format_version", *KINDS[record["kind"]].fields.split(", ")}
            assert record.keys() <= known, record
