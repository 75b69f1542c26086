"""docs/reference/job-file.md agrees with the models, and its examples work."""

import importlib.util
import re
from pathlib import Path

import pytest

from clustertrain.errors import JobError
from clustertrain.job.field_docstrings import docstrings_of
from clustertrain.job.file import dump_job, job_schema, load_job, parse_job, record_of
from clustertrain.job.identity import FREE_TRAIN_KEYS
from clustertrain.job.model import sections
from clustertrain.job.reference import MARK, reference_markdown

PAGE_TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "job-file.md").read_text("utf-8")
EXAMPLE = re.search(r"with most sections:\n\n```yaml\n(.*?)```", PAGE_TEXT, re.DOTALL)[1]


def test_the_reference_is_that_of_the_models():
    command = "python -m clustertrain.job.reference docs/reference/job-file.md"
    shown = PAGE_TEXT.partition(MARK)[2]
    assert shown == f"\n{reference_markdown()}", f"the page is stale; refresh it with: {command}"


def test_every_key_has_one_place_and_a_meaning():
    text = reference_markdown()
    for path, model in sections():
        for name, info in model.model_fields.items():
            key = re.escape(".".join((*path, info.alias or name)))
            inner = re.escape(info.alias or name)
            places = re.findall(rf"^(?:#### `{key}`\n\n|- `{inner}`: .*see \[)(.*)$", text, re.MULTILINE)
            assert places, f"{key} has no place"
            assert docstrings_of(model).get(name) or info.description, f"{key} has no docstring"
            assert any("required" in place for place in places) == info.is_required(), key


def test_the_free_keys_of_train_are_those_of_the_code():
    (sentence,) = re.findall(r"`train`, except for its keys ([^.]*)\.", PAGE_TEXT)
    assert set(re.findall(r"`(\w+)`", sentence)) == FREE_TRAIN_KEYS


def test_the_example_is_a_job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(EXAMPLE)
    job = load_job(path, environ={})
    assert job.resources.memory_per_worker_bytes == 32 * 2**30
    assert job.failures.watchdog.first_step_s == 5400
    assert job.storage.uri == str(tmp_path / "runs" / "experiments")
    for text in (dump_job(job), record_of(job), dump_job(job, defaults=True)):
        assert parse_job(text, "job.yaml") == job


def test_the_error_that_the_page_shows_is_the_error_that_is_given(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(EXAMPLE.replace("epochs: 20", "epcohs: 20"))
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert str(caught.value).replace(f"{tmp_path}/", "") in PAGE_TEXT


def test_the_sets_that_the_page_shows_are_taken(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(EXAMPLE)
    sets = re.findall(r'--set "?([\w.]+=(?:\[.*?\]|[^\s"`]+))', PAGE_TEXT)
    assert len(sets) >= 4
    job = load_job(path, sets, environ={})
    assert (job.train.epochs, job.train.precision, job.data["train"].uri) == (3, "bf16", "/data/cifar")


def test_the_schema_accepts_jobs_and_refuses_unknown_keys(tmp_path):
    schema = job_schema()
    assert schema["properties"]["train"]["description"]
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["name"]
    for definition in schema["$defs"].values():
        for value in definition.get("properties", {}).values():
            assert "description" in value or "$ref" in value
    if importlib.util.find_spec("jsonschema") is None:
        return
    from jsonschema import Draft202012Validator as Validator

    path = tmp_path / "job.yaml"
    path.write_text(EXAMPLE)
    Validator.check_schema(schema)
    validator = Validator(schema)
    job = {"name": "a", "task": "m:C", "train": {"epochs": 1, "batch_size": 4}, "failures": {"grace": "2h"}}
    assert validator.is_valid(job)
    assert validator.is_valid(load_job(path, environ={}).model_dump(mode="json", by_alias=True))
    assert validator.is_valid(
        job | {"resources": {"workers": [1, 2]}, "storage": "s3://b", "args": {"lr": 0.1}}
    )
    assert not validator.is_valid(job | {"trian": {}})
    assert not validator.is_valid(job | {"train": {"epcohs": 1}})
    assert not validator.is_valid(job | {"resources": {"workers": 0}})
