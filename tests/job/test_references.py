"""${CLUSTERTRAIN_…} in args, resume_args and env, ${NAME} in env: what may be written, what it becomes."""

import re
import socket
from pathlib import Path

import pytest

from clustertrain.errors import JobError
from clustertrain.job.file import dump_job, load_job, parse_job
from clustertrain.job.references import filled, names_of, with_values, without_references

SCRIPT = "name: a\nscript: t.py\ndata: {train: {uri: d}, test_2: {uri: e}}\n"
TASK = "name: a\ntask: m:C\ntrain: {epochs: 1, batch_size: 4}\ndata: {train: {uri: d}}\n"
VALID = ["CLUSTERTRAIN_DATA_TRAIN", "CLUSTERTRAIN_DATA_TEST_2", "CLUSTERTRAIN_CHECKPOINT_DIR"]


@pytest.fixture
def load(tmp_path):
    def load(text, **environ):
        (tmp_path / "job.yaml").write_text(text)
        try:
            return load_job(tmp_path / "job.yaml", (), environ)
        except JobError as error:
            return str(error).replace(f"{tmp_path}/", "")

    return load


def test_they_stay_as_they_are_until_a_worker_fills_them_in(load):
    job = load(
        SCRIPT + "args: ['-d', '${CLUSTERTRAIN_DATA_TRAIN}/x:${CLUSTERTRAIN_DATA_test_2}']\n"
        "resume_args: ['--from=${CLUSTERTRAIN_CHECKPOINT_DIR}']\n"
        "env: {HF_HOME: '${CLUSTERTRAIN_DATA_train}/hf', N: '${CLUSTERTRAIN_ATTEMPT}', HERE: there}\n",
        CLUSTERTRAIN_ATTEMPT="9",
    )
    assert parse_job(dump_job(job), "x") == job
    values = {
        "CLUSTERTRAIN_DATA_TRAIN": "/d",
        "CLUSTERTRAIN_DATA_TEST_2": "/${CLUSTERTRAIN_ATTEMPT}",
        "CLUSTERTRAIN_CHECKPOINT_DIR": "s3://b/c",
        "CLUSTERTRAIN_ATTEMPT": "1",
    }
    assert [filled(text, values) for text in job.args] == ["-d", "/d/x:/${CLUSTERTRAIN_ATTEMPT}"]
    assert filled(job.resume_args[0], values) == "--from=s3://b/c"
    assert filled(job.env["HF_HOME"], values) == "/d/hf"
    assert without_references(job.env) == {"HERE": "there"}


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("${B}-${B}", "b-b"),
        ("a$$b$${B}", "a$b${B}"),
        ("${EMPTY}", ""),
        ("${EMPTY:-f}${NONE:-g}", "fg"),
        ("${NONE:-}", ""),
        ("${B}/${CLUSTERTRAIN_ATTEMPT}", "b/${CLUSTERTRAIN_ATTEMPT}"),
    ],
)
def test_a_variable_in_env_stays_a_reference_until_the_driver_starts(load, text, becomes):
    environ = {"B": "b", "EMPTY": "", "CLUSTERTRAIN_ATTEMPT": "9"}
    job = load(f"{SCRIPT}env: {{A: '{text}'}}\n", **environ)
    assert job.env == {"A": text}
    assert parse_job(dump_job(job), "x") == job
    assert with_values(job.env, environ) == {"A": becomes}


def test_a_variable_of_env_that_is_not_set_is_named_where_the_job_starts(load):
    job = load(SCRIPT + "env: {A: '${B:-b}', C: '${D}${E}$${F}'}\n")
    assert names_of(job.env) == {"D": "C", "E": "C"}
    with pytest.raises(JobError) as caught:
        with_values(job.env, {"D": "d"})
    assert str(caught.value) == (
        f"env.C: needs the environment variable E, which is not set on {socket.gethostname()}\n"
        "set it where the job starts, or give a default: ${E:-default}"
    )
    assert caught.value.at == ("env", "C")


@pytest.mark.parametrize("text", ["$HOME", "a$", "${}", "${A", "${A-b}"])
def test_a_dollar_in_env_that_starts_no_reference_is_refused(load, text):
    assert "job.yaml:4:7: env.A: a '$' that does not start ${NAME}" in load(
        SCRIPT + f"env: {{A: '{text}'}}\n"
    )


@pytest.mark.parametrize("text", ["${now:%Y}", "${lr}/$x", "$${oc.env:HOME}", "${CLUSTER}", "${", "${X:-y}"])
def test_any_other_interpolation_is_the_scripts_own(load, text):
    job = load(SCRIPT + f"args: ['{text}']\nresume_args: ['{text}']\n", X="x")
    assert (job.args, job.resume_args) == ((text,), (text,))
    assert filled(text, {}) == text
    assert parse_job(dump_job(job), "x") == job


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SCRIPT + "args:\n  - --lr=1\n  - --data=${CLUSTERTRAIN_DTA_TRAIN}\n",
            "job.yaml:6:5: args.1: unknown variable '${CLUSTERTRAIN_DTA_TRAIN}'\n"
            f"the variables of a worker of this script are {', '.join(VALID)}, CLUSTERTRAIN_ATTEMPT, "
            "CLUSTERTRAIN_RESTART",
        ),
        (SCRIPT + "resume_args: ['${CLUSTERTRAIN_DATA_tset_2}']\n", "resume_args.0: unknown variable"),
        (SCRIPT + "env: {A: '${CLUSTERTRAIN_TOKEN}'}\n", "job.yaml:4:7: env.A: unknown variable"),
        (SCRIPT + "env: {A: '$${CLUSTERTRAIN_ZZ}'}\n", "env.A: unknown variable '${CLUSTERTRAIN_ZZ}'"),
        (SCRIPT + "args: ['${CLUSTERTRAIN_ATTEMPT:-1}']\n", "args.0: unknown variable"),
        (SCRIPT + "args: ['${CLUSTERTRAIN_ATTEMPT']\n", "'${CLUSTERTRAIN_ATTEMPT' has no closing brace"),
        (SCRIPT + "args: [-d, ${CLUSTERTRAIN_ATTEMPT}]\n", "a text with ${…} needs quo"),
        (TASK + "env: {A: '${CLUSTERTRAIN_CHECKPOINT_DIR}'}\n", "of this task are CLUSTERTRAIN_DATA_TR"),
        (TASK + "args: {a: '${CLUSTERTRAIN_ATTEMPT}'}\n", "${CLUSTERTRAIN_…} in the args of a script"),
    ],
)
def test_any_other_name_is_an_error_at_its_place(load, text, message):
    assert message in load(text)


def test_they_are_the_variables_that_a_script_reads(load):
    page = (Path(__file__).parents[2] / "docs" / "reference" / "environment.md").read_text()
    of_scripts = re.findall(r"^\| `(CLUSTERTRAIN_(?!SITE|PID)[^`]+)` \|", page, re.MULTILINE)
    referred = [name.replace("<NAME>", "TRAIN") for name in of_scripts]
    job = load(SCRIPT + "args:\n" + "".join(f"  - ${{{name}}}\n" for name in referred))
    assert not isinstance(job, str) and len(job.args) == len(of_scripts) == 4
