"""Job files on disk: places of errors, --set, ${NAME}, the round trip, and what makes it the same run."""

import os
import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clustertrain.errors import EXIT_JOB, JobError
from clustertrain.job.file import (
    LARGEST_FILE_BYTES,
    dump_job,
    load_job,
    parse_job,
    record_of,
)
from clustertrain.job.identity import FREE_TRAIN_KEYS, Change, identity, identity_difference, job_hash
from clustertrain.job.model import Job
from clustertrain.node.version import __version__

TASK = "name: a\ntask: m:C\ntrain: {epochs: 1, batch_size: 4}\n"
SCRIPT = "name: a\nscript: train.py\n"


@pytest.fixture
def load(tmp_path):
    def load(text: str | bytes, *sets: str, **environ: str) -> Job:
        path = tmp_path / "job.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_job(path, sets, environ)

    return load


@pytest.fixture
def refusal(load, tmp_path):
    def refusal(text: str | bytes, *sets: str, **environ: str) -> str:
        with pytest.raises(JobError) as caught:
            load(text, *sets, **environ)
        assert caught.value.exit_code == EXIT_JOB
        message = str(caught.value).replace(f"{tmp_path}{os.sep}", "")
        assert 2 <= len(message.splitlines()) <= 3, message
        return message

    return refusal


# ------------------------------------------------------------------------------------ places of errors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TASK + "trian: {}\n", "job.yaml:4:1: unknown key 'trian'\ndid you mean 'train'?"),
        (
            TASK + "data:\n  d: {url: a}\n",
            "job.yaml:5:7: data.d: unknown key 'url' (the first of 2 problems)\ndid you mean 'uri'?",
        ),
        (TASK + "workers: 2", "job.yaml:4:1: unknown key 'workers'\ndid you mean 'resources.workers'?"),
        (
            TASK + "resources: {env: 1}",
            "job.yaml:4:13: resources: unknown key 'env'\ndid you mean 'env' at the top level?",
        ),
        (
            TASK + "zzz: 2",
            "job.yaml:4:1: unknown key 'zzz'\nthe keys here are version, name, task, function, script, "
            "module, args, resume_args, data, scratch, train, checkpoint, resources, storage, failures, "
            "drill, env",
        ),
        ("{}", "job.yaml:1:1: the key 'name' is missing\nit has no default: add it"),
        (
            TASK + "failures: {retries: many}",
            "job.yaml:4:21: failures.retries: 'many' is not accepted\n"
            "must be a whole number, such as 3 or 1e3",
        ),
        (
            f"{TASK.rstrip()[:-1]}, profile: {{steps: [15, 10]}}}}\n",
            "job.yaml:3:52: train.profile.steps: a list is not accepted\n"
            "must be [first, last], with 1 ≤ first ≤ last\nfor example: [10, 15]",
        ),
        (
            TASK + "failures: 3",
            "job.yaml:4:11: failures: 3 is not accepted\nmust be a valid dictionary or instance of "
            "Failures with keys such as retries",
        ),
        (
            TASK + "slurm: {setup: module load cuda}",
            "job.yaml:4:16: slurm.setup: 'module load cuda' is not accepted\nmust be a valid tuple\n"
            'write it in brackets: ["module load cuda"]',
        ),
        (
            SCRIPT + "args: --lr 0.1",
            "job.yaml:3:7: args: '--lr 0.1' is not accepted\n"
            "must be a valid dictionary, or for script and module a list: [--lr, 0.1]",
        ),
        (
            TASK + "data: {A: {uri: x}}",
            "job.yaml:4:8: data: 'A' is not a valid name\nmust match pattern '^[a-z][a-z0-9_]*$'",
        ),
        (
            "name: on\n" + SCRIPT[8:],
            "job.yaml:1:7: name: true is not accepted\n"
            "must be a valid string, and YAML reads on, yes, off and no as true and false\n"
            "write it in quotes",
        ),
        (
            "name: 3\n" + SCRIPT[8:],
            'job.yaml:1:7: name: 3 is not accepted\nmust be a valid string\nwrite it in quotes: "3"',
        ),
        (
            "name: A_b\n" + SCRIPT[8:],
            "job.yaml:1:7: name: 'A_b' is not accepted\n"
            "must be 1 to 47 of a-z, 0-9 and '-', start with a letter, "
            "and end with a letter or digit (a Kubernetes name)\nfor example: a-b",
        ),
        (
            "name: a\ntask: m:C\ntrain:\n  epochs: 1\n  batch_size: 1\n  precision: bf61\n",
            "job.yaml:6:14: train.precision: 'bf61' is not accepted\n"
            "must be 'fp32', 'bf16' or 'fp16'\ndid you mean 'bf16'?",
        ),
        (
            "name: a\ntask: m:C\nscript: x.py\n",
            "job.yaml:3:1: script: both task and script are given\n"
            "exactly one of task, function, script and module is allowed: remove the others",
        ),
        (
            "name: a\n",
            "job.yaml:1:1: none of task, function, script and module is given\n"
            "exactly one of them is needed, for example task: package.module:Class",
        ),
        ("# only a comment\n", "job.yaml:1:1: the job file is empty\n"),
        ("- a\n", "job.yaml:1:1: the job file is a list\nit must be a mapping of keys"),
        (b"name: a\nx: \xff", "job.yaml: 'utf-8' codec can't decode byte 0xff"),
        (b"x" * (LARGEST_FILE_BYTES + 1), "job.yaml: is larger than 1 MiB\n"),
        (TASK + '"a\\nb": 3', "job.yaml:4:1: unknown key 'a\\nb'\n"),
        ("name: A\nscript: 3\n", "job.yaml:1:7: name: 'A' is not accepted (the first of 2 problems)\n"),
    ],
)
def test_an_error_names_its_place_the_value_the_rule_and_the_remedy(refusal, text, message):
    assert refusal(text).startswith(message)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "No such file or directory"),
        (os.mkdir, "Is a directory"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    ],
    ids=["missing", "folder", "pipe", "device"],
)
def test_a_job_file_that_cannot_be_read_is_named_with_the_next_command(tmp_path, make, message):
    path = tmp_path / "job.yaml"
    make(path)
    with pytest.raises(
        JobError, match=r"\nname another job file, or create .*: clustertrain init$"
    ) as caught:
        load_job(path)
    assert str(caught.value).startswith(f"{path}: cannot be read: {message}\n")
    assert caught.value.exit_code == EXIT_JOB


@pytest.mark.parametrize(
    ("name", "shown"), [("a\nb", r"a\n"), ("a\xa0b", r"a\xa0"), ("a\udcfcb", r"a\udcfc")]
)
def test_a_folder_that_no_job_could_name_is_refused(tmp_path, monkeypatch, name, shown):
    (tmp_path / name).mkdir()
    (tmp_path / name / "job.yaml").write_text(TASK)
    monkeypatch.chdir(tmp_path / name)
    with pytest.raises(JobError, match="not printable") as caught:
        load_job("job.yaml")
    assert f"/{shown}b/job.yaml'" in str(caught.value).splitlines()[0]
    assert len(str(caught.value).splitlines()) == 2


def test_a_byte_order_mark_and_a_string_path(tmp_path):
    (tmp_path / "job.yaml").write_bytes(b"\xef\xbb\xbf" + TASK.encode())
    assert load_job(str(tmp_path / "job.yaml")).name == "a"


@pytest.mark.parametrize(
    "sets",
    [
        *[f"{key}=1:30" for key in ("failures.retries", "resources.workers", "train.clip_norm")],
        *("resources.memory_per_worker=1:30", "failures.grace=1:0:0:0"),
    ],
)
def test_base_60_is_a_number_only_where_a_duration_is_meant(refusal, sets):
    key, _, value = sets.partition("=")
    assert f"{key}: '{value}' is not accepted" in refusal(TASK, sets)


def test_on_and_off_are_booleans_only_if_one_is_expected(load, refusal):
    assert load(TASK + "checkpoint: {async: off}").checkpoint.async_ is False
    assert load(TASK + "env: {A: on, B: 1.10, C: 010}").env == {"A": "on", "B": "1.10", "C": "010"}
    assert load(SCRIPT + "args: [--flag, on, 1e-4]").args == ("--flag", "on", "1e-4")
    assert load(TASK + "args: {a: true, lr: 1e-4}").args == {"a": True, "lr": 1e-4}
    assert "train.epochs: true is not accepted" in refusal(TASK, "train.epochs=yes")
    assert "on is a boolean in YAML 1.1" in refusal(TASK + "args: {a: on}")
    assert "must be a valid boolean" in refusal(TASK + "checkpoint: {async: 'off'}")


# --------------------------------------------------------------------------------------------- --set


def test_set_replaces_adds_and_makes_sections(load):
    made = load(
        TASK,
        "train.epochs=3",
        "train.lr.scaling=linear",
        "failures.watchdog.step=1:30:00",
        "resources.workers=[2, 4]",
        "data.d.uri=s3://b/k",
        "data.d.sha256=" + "0" * 64,
        "env.A=010",
        "args={lr: 1e-3}",
        "args.momentum=0.9",
        "train.epochs=5",
    )
    assert (made.train.epochs, made.train.lr.scaling, made.resources.workers) == (5, "linear", (2, 4))
    assert (made.failures.watchdog.step_s, made.env) == (5400, {"A": "010"})
    assert (made.data["d"].uri, made.args) == ("s3://b/k", {"lr": 1e-3, "momentum": 0.9})


def test_set_to_null_leaves_the_key_out(load):
    sets = ("resources.workers=null", "resources.nodes=2", "resources.gpus_per_node=4")
    assert load(TASK + "resources: {workers: 2}", *sets).resources.max_workers == 8


def test_the_value_of_a_set_may_hold_an_equals_sign_and_variables(load):
    made = load(TASK, "env.OPTS=--a=b", "storage=${S}/runs", S="s3://b")
    assert (made.env["OPTS"], made.storage.uri) == ("--a=b", "s3://b/runs")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epcohs=3", "--set train.epcohs=3: train: unknown key 'epcohs'\ndid you mean 'epochs'?"),
        ("train.epochs=x", "--set train.epochs=x: train.epochs: 'x' is not accepted\nmust be a whole number"),
        ("train.epochs", "--set train.epochs: is not KEY=VALUE\n"),
        ("a..b=3", "--set a..b=3: is not KEY=VALUE\n"),
        ("name.x=3", "--set name.x=3: name is 'a', which has no keys\nreplace the whole value: --set name=…"),
        ("train.epochs=[", "--set train.epochs=[: expected the node content"),
        ("train.epochs=!!int 3", "--set train.epochs=!!int 3: the tag !!int\n"),
        ("args={a: 1, a: 2}", "--set args={a: 1, a: 2}: the key 'a' is given twice\n"),
        ("name=${X}", "--set name=${X}: name: '${X}' is not accepted\n"),
        ("name=a\nb", "--set name=a\\nb: name: 'a b' is not accepted\n"),
    ],
)
def test_an_error_of_a_set_names_it(refusal, override, message):
    assert refusal(TASK, override).startswith(message)


def test_a_credential_in_a_set_is_not_repeated(refusal):
    for uri in ("https://me:hunter2@h/x", "https://h/x?token=hunter2"):
        text = refusal(TASK, f"data.d.uri={uri}")
        assert "contains a credential" in text
        assert "hunter2" not in text
    for key in ("storage.secret_access_key", "data.d.access-key", "env.AWS_SECRET_ACCESS_KEY"):
        text = refusal(TASK, f"{key}=hunter2")
        assert text.startswith(f"--set {key}=…: ")
        assert "contains a credential" in text
        assert "hunter2" not in text


def test_a_credential_in_a_file_is_pointed_at_and_not_repeated(refusal):
    text = refusal(TASK + "storage:\n  uri: s3://b\n  secret_key: hunter2\n")
    assert re.match(r".*:\d+:3: storage.secret_key: contains a credential", text)
    assert "~/.aws/credentials" in text
    assert "hunter2" not in text


# -------------------------------------------------------------------------------------------- ${NAME}


def test_variables_are_replaced_where_they_may_stand(load, tmp_path):
    made = load(
        TASK + "storage: {uri: 's3://${B}/p', profile: '${P:-dev}'}\ndata: {d: {uri: '${D}/x'}}\n"
        "code: ${CODE}\n",
        B="b",
        D="/d",
        CODE="src",
    )
    assert (made.storage.uri, made.storage.profile, made.data["d"].uri) == ("s3://b/p", "dev", "/d/x")
    assert made.code == (str(tmp_path / "src"),)
    assert parse_job(dump_job(made), "x") == made


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("name: ${X}\nscript: a.py", "name"),
        ("name: a\nscript: ${X}.py", "script"),
        (TASK + "args: {a: {b: '${X}'}}", "args.a.b"),
        (TASK + "data: {d: {uri: x, sha256: '${X}'}}", "data.d.sha256"),
        (TASK + "failures: {grace: '${X}'}", "failures.grace"),
    ],
)
def test_a_variable_elsewhere_is_refused_with_where_it_may_stand(refusal, text, key):
    message = refusal(text, X="x")
    assert f": {key}: '" in message
    assert (
        "${NAME} is replaced only in storage, scratch, data.*.uri, env, code, interpreter, image" in message
    )


def test_a_variable_that_is_not_set_is_refused_with_its_name(refusal):
    assert refusal(TASK + "storage: ${SCRATCH}/x\n") == (
        "job.yaml:4:10: storage: needs the environment variable SCRATCH, which is not set\n"
        "export SCRATCH=…, or give a default: ${SCRATCH:-default}"
    )
    assert "a '$' that does not start ${NAME}" in refusal(TASK + "storage: $HOME\n")


@pytest.mark.parametrize("value", ["${NOPE:-${B:-/x}}", "${NOPE:-{x}}", "/a/${CLUSTERTRAIN_X:-${B}}"])
@pytest.mark.parametrize("key", ["storage", "env"])
def test_a_brace_in_a_default_is_refused_and_not_cut_at(refusal, key, value):
    text = refusal(
        TASK + (f"storage: '{value}'\n" if key == "storage" else f"env: {{A: '{value}'}}\n"), B="b"
    )
    assert f"{value!r} has a brace in the default of ${{" in text
    assert text.endswith(":-…}\na default is plain text, and ends at the first '}'")


def test_paths_are_relative_to_the_file(load, tmp_path):
    made = load(TASK + "code: ./src\ndata: {d: {uri: ../x}, e: {uri: 's3://b/k'}, f: {uri: /abs}}\n")
    assert (made.code, made.storage.uri) == ((str(tmp_path / "src"),), str(tmp_path / "runs"))
    assert [entry.uri for entry in made.data.values()] == [str(tmp_path.parent / "x"), "s3://b/k", "/abs"]
    assert load(TASK).code == (str(tmp_path),)
    own = load("name: a\nscript: t.py\ninterpreter: .venv\n")
    assert own.interpreter == str(tmp_path / ".venv")
    own = load("name: a\nscript: t.py\ninterpreter: ${ENVS}/mine/bin/python\n", ENVS="/envs")
    assert own.interpreter == "/envs/mine/bin/python"
    assert parse_job(dump_job(own), "x") == own
    several = load(TASK + "code: [., ../lib, '${LIB}/b']\n", LIB="/x")
    assert several.code == (str(tmp_path), str(tmp_path.parent / "lib"), "/x/b")
    assert parse_job(dump_job(several), "x") == several


# ------------------------------------------------------------------------------------- writing it


def test_a_job_of_a_later_version_is_refused_before_anything_else_in_it(refusal):
    message = refusal(TASK + "version: 2\nkey_of_version_2: 1\n")
    what, rule, remedy = message.splitlines()
    assert what == "job.yaml:4:1: version: 2 is of a later clustertrain"
    assert rule == f"clustertrain {__version__} reads versions up to 1"
    assert remedy == "install a later clustertrain"


@pytest.mark.parametrize("version", ["0", "'2'", "0.5", "true", "[1]"])
def test_a_version_is_a_whole_number(refusal, version):
    assert re.match(
        r"job.yaml:4:10: version: .* is not accepted\nmust be", refusal(f"{TASK}version: {version}\n")
    )


def test_version_1_is_the_default_and_no_part_of_the_runs_identity(load):
    assert load(TASK + "version: 1\n") == load(TASK)
    assert "version" not in identity(load(TASK))


def test_a_record_has_the_version_the_identity_and_what_differs_from_the_defaults(load):
    job = load(TASK + "args: {a: null}\nfailures: {grace: 2h}\nresources: {workers: 1}\n")
    first, *lines = record_of(job).splitlines()
    assert __version__ in first
    assert lines[0] == "version: 1"
    assert {"  a: null", "  grace: 2h", "  seed: 0"} <= {*lines}
    assert not [line for line in lines if line.startswith(("  retries", "resources", "  steps"))]
    assert parse_job(dump_job(job, defaults=True), "a record of an older version") == job


# -------------------------------------------------------------------------------------------- garbage

LINES = st.sampled_from(
    [
        "name: a",
        "task: m:C",
        "train:",
        "  epochs: 1",
        "  lr: {",
        "args: &a [*a]",
        "data: {d: {uri: s3://b}}",
        "resources: {workers: [1, 0]}",
        "env: {A: ${B}}",
        "storage:",
        "  uri: !!x y",
        "? [a]",
        "---",
        "...",
        "%YAML 9.9",
        "<<: {a: b}",
        "'a: \"",
        "\t",
        "x: ",
        "\n y",
    ]
)


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(
    st.binary() | st.lists(LINES | st.text(max_size=9), max_size=9).map("\n".join).map(str.encode),
    st.lists(st.text(max_size=12).map("train.epochs={}".format) | st.text(max_size=12), max_size=2),
)
@example("name: a\nx: {\ud800: 1}".encode("utf-8", "surrogatepass"), [])
@example(b"%TAG ! !\n%TAG ! !\n--- a", [])
@example(b'"\\x', [])
def test_any_file_and_sets_are_a_job_or_a_short_job_error(tmp_path_factory, raw, sets):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    for before in (b"", TASK.encode()):
        path.write_bytes(before + raw)
        try:
            assert isinstance(load_job(path, sets, {}), Job)
        except JobError as error:
            assert 2 <= len(str(error).splitlines()) <= 4


# ------------------------------------------------------------------------------------------- identity


def change(load, *sets: str, text: str = TASK) -> list[str]:
    old, new = load(text), load(text, *sets)
    lines = [str(change) for change in identity_difference(old, new)]
    assert (job_hash(old) == job_hash(new)) == (not lines) == (identity(old) == identity(new))
    return lines


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("train.seed=1", "train.seed: 0 → 1"),
        ("train.precision=bf16", 'train.precision: "fp32" → "bf16"'),
        ("train.lr.scaling=linear", 'train.lr.scaling: "none" → "linear"'),
        ("train.matmul=highest", 'train.matmul: "tf32" → "highest"'),
        ("train.clip_norm=1", "train.clip_norm: null → 1.0"),
        ("train.compile={dynamic: true}", "train.compile.dynamic: absent → true"),
        ("task=m:D", 'task: "m:C" → "m:D"'),
        ("args.lr=0.1", "args.lr: absent → 0.1"),
        ("data.d.extract=true", "data.d.extract: absent → true"),
    ],
)
def test_a_change_of_this_key_makes_another_run(load, override, line):
    more = ["data.d.uri=/x"] if override.startswith("data") else []
    assert line in change(load, *more, override)


@pytest.mark.parametrize(
    "override",
    [
        "train.epochs=9",
        "train.eval_every.epochs=2",
        "resources.bind_cpus=false",
        "checkpoint.keep_last=1",
        "resources.workers=4",
        "failures.retries=0",
        "failures.watchdog.step=1h",
        "storage={uri: s3://b, endpoint: http://h, region: eu, addressing: path, retry: 5}",
        "env.A=b",
        "code=elsewhere",
        "slurm.qos=low",
    ],
)
def test_a_change_of_this_key_continues_the_run(load, override):
    assert change(load, override) == []


def test_every_key_of_train_is_decided():
    arithmetic = "batch_size global_batch_size seed precision accumulate clip_norm compile sync_batchnorm"
    arithmetic += " find_unused_parameters lr limit_batches strategy fsdp ddp activation_checkpointing"
    arithmetic += " matmul cudnn"
    train = parse_job(TASK, "job.yaml").train
    undecided = {*train.__dict__} ^ ({*arithmetic.split()} | FREE_TRAIN_KEYS)
    assert not undecided, "a key that may change during a run is in FREE_TRAIN_KEYS, any other one here"


def test_data_with_a_checksum_may_move_and_how_data_is_reached_may_change(load):
    reached = (f"data.d.{option}" for option in ("endpoint=http://h", "region=eu", "addressing=path"))
    assert change(load, *reached, text=TASK + "data: {d: {uri: 's3://b/k'}}\n") == []
    bare = TASK + "data: {d: {uri: /x}}\n"
    summed = TASK + f"data: {{d: {{uri: /x, sha256: '{'0' * 64}'}}}}\n"
    assert change(load, "data.d.uri=/y", text=bare) == ['data.d.uri: "/x" → "/y"']
    assert change(load, "data.d.uri=/y", "data.d.per=node", text=summed) == []
    assert len(change(load, f"data.d.sha256={'1' * 64}", text=summed)) == 1


def test_keys_with_dots_are_not_mixed_up():
    def made(args):
        return Job.model_validate({"name": "a", "function": "m:f", "args": args})

    assert identity_difference(made({"a.b": 1}), made({"a": {"b": 1}}))
    assert identity_difference(made({"a": 1}), made({"a": 1.0})) == [Change("args.a", "1", "1.0")]
    assert identity_difference(made({"a": {}}), made({})) == [Change("args.a", "{}", "absent")]


@pytest.mark.parametrize(
    "text",
    [
        "a:\n" + "".join(f"- &a{number} x\n" for number in range(75_000)),
        "a: [" + "&a x," * 100_000 + "]",
        "a: &a x\nb: [" + "*a," * 100_000 + "]",
        "? a\n" * 200_000,
        "---\n" * 200_000,
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 16)),
        "a: &a [*a]",
        "[" * 100_000,
        "- " * 1000,
    ],
    ids=lambda text: text[:12],
)
def test_a_text_of_too_many_values_or_levels_is_refused_in_seconds(tmp_path, text):
    """Some of these took a minute: PyYAML composed all of the text first."""
    (tmp_path / "job.yaml").write_text(text)
    began = time.process_time()
    with pytest.raises(JobError, match=r"more than 20000 values|nested too deep|second occurrence|document"):
        load_job(tmp_path / "job.yaml")
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("fsdp.shard=hybrid",), "train.fsdp: is given, but strategy is ddp\n"),
        (("strategy=fsdp", "precision=fp16"), "train.precision: is fp16, and strategy is fsdp\n"),
        (("strategy=fsdp", "compare_weights_every=5"), "train.compare_weights_every: is 5, and strategy is"),
    ],
)
def test_what_fsdp_does_not_support_is_refused(refusal, load, keys, message):
    assert message in refusal(TASK, *(f"train.{key}" for key in keys))
    allowed = load(TASK, "train.strategy=fsdp", "train.fsdp={blocks: [Layer], shard: hybrid}")
    assert allowed.train.fsdp.blocks == ("Layer",)
