"""The catalogue: each entry recognises the output of a process that failed in its way, and no other does."""

import importlib.util
import itertools
import re
from pathlib import Path

import pytest
import yaml

from clustertrain.errors import JobError
from clustertrain.job.file import parse_job
from clustertrain.observe.explain.catalogue import ENTRY_POINTS, LAUNCHERS, RunKind, catalogue
from clustertrain.observe.explain.first_cause import EvidenceText, first_cause, hits_of

HERE = Path(__file__).parent
PAGE = (HERE.parents[2] / "docs" / "reference" / "job-file.md").read_text()
GLOO = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  4100 vs 4."
NAMES = [entry.name for entry in catalogue()]


def _causes():
    spec = importlib.util.spec_from_file_location("causes_of_failures", HERE / "causes" / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CAUSES = _causes()


def found_in(text):
    hit = first_cause(hits_of(EvidenceText("rank-1.log", text)))
    return hit.entry.name if hit is not None else None


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_recognises_its_failure_and_no_other_takes_it(name):
    assert found_in((HERE / "fixtures" / f"{name}.log").read_text()) == name


def test_every_fixture_has_an_entry_that_says_where_its_text_is_from():
    assert len(NAMES) == len(set(NAMES)) >= 40
    assert {path.stem for path in (HERE / "fixtures").iterdir()} == set(NAMES)
    assert {entry.name for entry in catalogue() if not entry.source} == set(CAUSES.names())


def test_the_keys_that_the_remedies_name_are_keys_of_the_job_file():
    sections = re.findall(r"^### `([a-z_.*]+)`$", PAGE, re.MULTILINE)
    keys = re.findall(r"^(?:#### `.*?|- `)(\w+)`", PAGE, re.MULTILINE)
    changes = " ".join(entry.change_for(RunKind()) for entry in catalogue())
    named = re.findall(r"`([a-z_]+(?:\.[a-zA-Z_]+)+)(?=[`:])", changes)
    assert len(named) > 60
    for key in named:
        section, _, last = key.replace("data.NAME", "data.*").rpartition(".")
        assert section in (*sections, "torch.multiprocessing", "model") and last in keys, key


SECTIONS = {  # that a job may have only for some entry points
    "train": {"epochs": 1, "batch_size": 1},
    "checkpoint": {"keep_last": 2},
    "interpreter": "/envs/mine",
    "resume_args": ["--resume"],
}
RUNS = {
    "task": {"task": "m:C", "train": SECTIONS["train"]},
    "function": {"function": "m:f"},
    "script": {"script": "a.py"},
}


def cannot_have(entry_point, section):
    """Whether the job file refuses a section for an entry point."""
    job = {"name": "a", "storage": "runs", **RUNS[entry_point], section: SECTIONS[section]}
    try:
        parse_job(yaml.safe_dump(job), "job.yaml")
    except JobError:
        return True
    return False


def words_without_effect(entry_point, launcher):
    """What a remedy must not name there."""
    words = [f"`{section}[`.:]" for section in SECTIONS if cannot_have(entry_point, section)]
    words += [f"`{other}[`.:]" for other in LAUNCHERS if other != launcher]
    words += ["`image`", "`resources.memory_per_worker`"] * (launcher not in ("slurm", "kubernetes"))
    words += ["rehearses"] * (entry_point != "task")
    return [*words, "`clustertrain check`"] if entry_point == "script" else words


@pytest.mark.parametrize(("entry_point", "launcher"), [*itertools.product(ENTRY_POINTS, LAUNCHERS)])
def test_the_remedy_of_each_entry_holds_for_each_entry_point_and_launcher(entry_point, launcher):
    words = words_without_effect(entry_point, launcher)
    assert len(words) >= 3
    for entry in catalogue():
        assert all(part.words <= {*ENTRY_POINTS, *LAUNCHERS} for part in entry.change), entry.name
        change = entry.change_for(RunKind(entry_point, launcher))
        assert change, f"{entry.name} has no remedy"
        assert not [word for word in words if re.search(word, change)], f"{entry.name}: {change}"


@pytest.mark.nightly
@pytest.mark.parametrize("name", CAUSES.names())
def test_a_failure_is_recognised_when_it_is_caused_again(name):
    assert found_in(CAUSES.output_of(name)) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Epoch 3: loss 0.1\nsaved a checkpoint\n", None),
        ("Traceback (most recent call last):\n  File 'a.py'\nValueError: upside down\n", "unknown"),
        ("ValueError: upside down\n", None),  # printed, without a traceback
        ("train.py ended by signal 15 (SIGTERM) on rank 1.\n", "killed"),
        ("rank 1 (pid 7 on a) does not answer; its process is in state D (disk sleep)\n", "rank_stopped"),
        ("rank 1 (pid 7 on a) does not answer; its process is in state R (running)\n", None),
        ("ray.exceptions.ActorUnschedulableError: its placement group was removed\n", None),
        (f"{GLOO} Received data size doesn't match expected size. Is there a …", "collective_mismatch"),
    ],
)
def test_an_unknown_failure_is_known_to_be_unknown(text, name):
    assert found_in(text) == name
