"""What a job refuses, what its values become, and that any job is written and read back as itself."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from clustertrain.job.file import dump_job, parse_job, record_of
from clustertrain.job.identity import identity_difference, job_hash
from clustertrain.job.model import Job, sections
from clustertrain.storage.location import CREDENTIAL_CHAIN, Location

TASK = {"name": "a", "task": "m:C", "train": {"epochs": 1, "batch_size": 4}}
FUNCTION = {"name": "a", "function": "m:f"}
SCRIPT = {"name": "a", "script": "train.py"}
MODULE = {"name": "a", "module": "package.train"}


def refusal(**keys) -> str:
    with pytest.raises(ValidationError) as caught:
        Job.model_validate(keys)
    return str(caught.value)


def job(**keys) -> Job:
    return Job.model_validate(TASK | keys)


def test_every_section_refuses_unknown_keys():
    paths = [".".join(path) for path, _ in sections()]
    assert paths == sorted(set(paths), key=paths.index)
    assert {"", "data.*", "train", "train.lr", "resources", "failures.watchdog", "storage"} <= {*paths}
    for _, model in sections():
        assert model.model_config["extra"] == "forbid"
        assert model.model_config["frozen"]


ONE = {"epochs": 1, "batch_size": 4}
NO_NAMES = ["", "A", "1a", "-a", "a-", "a" * 48, "a_b", "a.b", "é", "a\n"]
NO_NAMES_OF_DATA = ["A", "a-b", "1a", "", "a b", "a\n"]
ENTRY_POINTS = [
    (TASK | SCRIPT | FUNCTION, "task and function and script are given"),
    ({"name": "a", "task": "m:C"}, "the section train is missing"),
    (FUNCTION | {"train": ONE}, "is given together with function"),
    (FUNCTION | {"checkpoint": {"memory_every": 5}}, "is 5 for a function"),
    (FUNCTION | {"checkpoint": {"every": {"epochs": 1}}}, "only the function's own loop knows its epochs"),
    (SCRIPT | {"train": ONE}, "is given together with script"),
    (SCRIPT | {"args": {"lr": 1}}, "a script takes a list"),
    (MODULE | {"checkpoint": {}}, "a module saves its own checkpoints"),
    (MODULE | {"module": "p/train.py"}, "a file is named by the key script"),
    (MODULE | {"module": "p.train:main"}, "must be package.module, as `python -m` takes it"),
    (TASK | {"args": ["--lr", 1]}, "a task takes its arguments by name"),
    (TASK | {"resume_args": ["--resume"]}, "needs no argument to resume"),
    (TASK | {"task": "m"}, "must be package.module:Name"),
    (SCRIPT | {"script": "/abs/train.py"}, "must be a file below `code`"),
    (SCRIPT | {"script": "../train.py"}, "must be a file below `code`"),
    (TASK | {"code": [".", "~/x"]}, "'~' is not expanded"),
    (TASK | {"interpreter": "/p"}, "a task runs in the worker's own process, whose Python needs torch"),
    (TASK | {"code": []}, "at least 1 item"),
    (TASK | {"code": [".", "a:b"]}, "a folder with ':' cannot be on the import path"),
    (SCRIPT | {"env": {"A B": "x"}}, "env"),
    (SCRIPT | {"env": {"A": True}}, "env"),
    (SCRIPT | {"args": [[]]}, "args"),
]
TRAINS = [
    (ONE | {"steps": 2}, "both epochs and steps"),
    ({"batch_size": 4}, "none of epochs and steps"),
    ({"epochs": 1}, "none of batch_size and global_batch_size"),
    (ONE | {"global_batch_size": 8}, "both batch_size and global_batch_size"),
    (ONE | {"lr": "1e-3"}, "pass the learning rate itself to your task"),
    (ONE | {"clip_norm": float("inf")}, "must be a number"),
    (ONE | {"compile": "on"}, "valid boolean"),
    (ONE | {"eval_every": {}}, "none of epochs and steps"),
]
SHAPES = [
    ({"workers": 0}, "with 1 ≤ min ≤ max"),
    ({"workers": [1, 2, 3]}, "or [min, max]"),
    ({"workers": 1.5}, "must be a whole number"),
    ({"workers": 100_001}, "max ≤ 100000"),
    ({"workers": 2, "nodes": 1, "gpus_per_node": 2}, "both workers and gpus_per_node are given"),
    ({"workers": 2, "gpus_per_node": 2}, "is given without nodes"),
    ({"nodes": 0, "gpus_per_node": 2}, "must be a number of nodes, or [min, max], with 1 ≤ min ≤ max"),
    ({"nodes": 1, "gpus_per_node": 2, "gpus_per_worker": 2}, "there is one worker per GPU"),
    ({"gpus_per_worker": -1}, "greater than or equal to 0"),
    ({"cpus_per_worker": 0}, "greater than 0"),
    ({"memory_per_worker": 16}, "a bare number is bytes"),
]
DATA = [
    ({"uri": ""}, "at least 1 character"),
    ({"uri": "ftp://h/x"}, "must be a path, or start with file://"),
    ({"uri": "https://h:99999/x"}, "Port out of range"),
    ({"uri": "a\nb"}, "of printable characters"),
    ({"uri": "x", "sha256": "ab"}, "should match pattern"),
]
STORAGES = [
    ({"uri": "s3://b", "endpoint": "h"}, "must be the address of an S3 server"),
    ({"uri": "s3://b", "addressing": "x"}, "'auto', 'path' or 'virtual'"),
    ({"uri": "s3://b", "retry": 0}, "greater than 0"),
    ("https://h/x", "start with s3://"),
]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        *[(TASK | {"name": name}, "must be 1 to 47 of a-z, 0-9 and '-'") for name in NO_NAMES],
        *[(TASK | {"data": {name: {"uri": "x"}}}, "should match pattern") for name in NO_NAMES_OF_DATA],
        *ENTRY_POINTS,
        *[(TASK | {"train": train}, message) for train, message in TRAINS],
        *[(TASK | {"resources": shape}, message) for shape, message in SHAPES],
        *[(TASK | {"data": {"d": entry}}, message) for entry, message in DATA],
        *[(TASK | {"storage": storage}, message) for storage, message in STORAGES],
    ],
)
def test_a_mistake_is_refused_with_its_rule(keys, message):
    assert message in refusal(**keys)


def test_the_longest_name_and_a_name_of_data_with_digits_are_accepted():
    assert job(name="a-1" + "a" * 44, data={"my_data1": {"uri": "x"}})


def test_a_script_has_no_section_checkpoint_and_left_empty_is_left_out():
    assert Job.model_validate(SCRIPT | {"checkpoint": None, "train": None}).script == "train.py"


@pytest.mark.parametrize(
    ("resources", "workers", "gpus_per_worker", "nodes", "workers_per_node"),
    [
        ({}, (1, 1), 0, (1, 1), 1),
        ({"workers": [2, 8]}, (2, 8), 0, (1, 1), 8),
        ({"nodes": 2, "gpus_per_node": 4, "gpus_per_worker": 1}, (8, 8), 1, (2, 2), 4),
        ({"nodes": [1, 3], "gpus_per_node": 4}, (4, 12), 1, (1, 3), 4),
        ({"workers": 4, "nodes": 2}, (4, 4), 0, (2, 2), 2),
    ],
)
def test_the_shape_follows_from_resources(resources, workers, gpus_per_worker, nodes, workers_per_node):
    made = job(resources=resources).resources
    assert (made.min_workers, made.max_workers, made.gpus_per_worker) == (*workers, gpus_per_worker)
    assert (made.min_nodes, made.max_nodes, made.workers_per_node) == (*nodes, workers_per_node)


@pytest.mark.parametrize(
    ("workers", "nodes", "arithmetic", "remedy"),
    [
        (2, 4, "2 / 4 = 0.5 workers per node", "workers: 4"),
        ([2, 9], [1, 3], "2 / 1 = 2 and 9 / 3 = 3 workers per node", "workers: [3, 9]"),
        (4, [1, 2], "4 / 1 = 4 and 4 / 2 = 2 workers per node", "workers: [2, 4]"),
    ],
)
def test_workers_that_do_not_spread_evenly(workers, nodes, arithmetic, remedy):
    text = refusal(**TASK, resources={"workers": workers, "nodes": nodes})
    assert arithmetic in text
    assert f"for example {remedy} " in text  # its whole last line


@pytest.mark.parametrize("setting", [{"sync_batchnorm": True}, {"precision": "fp16"}])
def test_what_needs_a_gpu_is_refused_without_one(setting):
    train = TASK["train"] | setting
    text = refusal(**TASK | {"train": train})
    assert "with 0 GPUs per worker" in text
    assert "set resources.gpus_per_worker" in text
    for resources in ({"gpus_per_worker": 1}, {"nodes": 1, "gpus_per_node": 1}):
        assert job(train=train, resources=resources)
    assert job(train=TASK["train"] | {"precision": "bf16"})


@pytest.mark.parametrize(
    ("batch", "accumulate", "workers", "lines"),
    [
        (100, 2, 3, ["3 workers × accumulate 2 = 6, and 100 / 6 = 16.6667", "nearest that fit: 96 and 102"]),
        (1, 1, 4, ["4 workers × accumulate 1 = 4, and 1 / 4 = 0.25", "nearest that fit: 4"]),
        (
            7,
            1,
            [2, 4],
            ["no number of workers from 2 to 4", "4 workers: 4 and 8"],
        ),
    ],
)
def test_a_global_batch_that_does_not_divide(batch, accumulate, workers, lines):
    train = {"epochs": 1, "global_batch_size": batch, "accumulate": accumulate}
    text = refusal(**TASK | {"train": train}, resources={"workers": workers})
    assert f"{batch} is not a multiple of workers × accumulate" in text
    for line in lines:
        assert line in text


@settings(deadline=None)  # the machine may be busy
@given(st.integers(1, 500), st.integers(1, 4), st.integers(1, 12), st.integers(0, 12))
def test_world_sizes_are_those_that_the_global_batch_divides_into(batch, accumulate, least, more):
    keys = {
        "train": {"epochs": 1, "global_batch_size": batch, "accumulate": accumulate},
        "resources": {"workers": [least, least + more]},
    }
    fitting = tuple(n for n in range(least, least + more + 1) if batch % (n * accumulate) == 0)
    if fitting:
        assert job(**keys).world_sizes == fitting
    else:
        assert "is not a multiple of" in refusal(**TASK | keys)


@pytest.mark.parametrize(
    ("batch", "resources", "counts"),
    [
        (12, {"workers": [2, 8]}, (1,)),
        (12, {"workers": [2, 8], "nodes": [1, 4]}, (1, 2, 3)),
        (8, {"workers": [2, 6], "nodes": [1, 3]}, (1, 2)),
        (8, {"nodes": [1, 4], "gpus_per_node": 2}, (1, 2, 4)),
    ],
)
def test_node_counts_are_those_whose_workers_the_global_batch_divides_into(batch, resources, counts):
    train = {"epochs": 1, "global_batch_size": batch}
    assert job(train=train, resources=resources).node_counts == counts


def test_a_global_batch_that_divides_on_no_number_of_nodes():
    train = {"epochs": 1, "global_batch_size": 9}
    text = refusal(**TASK | {"train": train}, resources={"workers": [2, 6], "nodes": [1, 3]})
    assert "no number of workers from 2 to 6 (2 on each node)" in text


def test_these_addresses_of_data_are_accepted():
    for uri in ("./a b", "s3://bucket/p", "file:///d/x", "https://h/x?v=1", "http://h:80/x", "a@b/c"):
        assert job(data={"d": {"uri": uri}}).data["d"].uri == uri


SECRET_URIS = [
    "https://me:hunter2@h/x",
    "s3://KEY:hunter2@bucket/x",
    "https://h/x?X-Amz-Signature=hunter2",
    "https://h/x?a=1&token=hunter2",
    "https://h/x?password=hunter2",
]
SECRET_KEYS = ["access_key", "secret_key", "aws_secret_access_key", "secret", "token"]
SECRET_VARIABLES = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"]
SECRETS_OF_LOGGERS = {
    "WANDB_API_KEY": "hunter2",
    "MLFLOW_TRACKING_PASSWORD": "hunter2",
    "MLFLOW_TRACKING_URI": "https://me:hunter2@mlflow.example.org",
}


@pytest.mark.parametrize(
    ("keys", "remedy"),
    [
        *[({"data": {"d": {"uri": uri}}}, "AWS_PROFILE") for uri in SECRET_URIS],
        *[({"storage": uri}, "AWS_PROFILE") for uri in SECRET_URIS],
        *[({"storage": {"uri": "s3://b", "endpoint": uri}}, "AWS_PROFILE") for uri in SECRET_URIS],
        *[({"storage": {"uri": "s3://b", key: "hunter2"}}, CREDENTIAL_CHAIN) for key in SECRET_KEYS],
        *[({"storage": {"uri": "a", key.upper(): "hunter2"}}, CREDENTIAL_CHAIN) for key in SECRET_KEYS],
        ({"data": {"d": {"uri": "s3://b/k", "access-key": "hunter2"}}}, CREDENTIAL_CHAIN),
        *[({"env": {name: "hunter2"}}, CREDENTIAL_CHAIN) for name in SECRET_VARIABLES],
        *[
            ({"env": {name: value}}, "slurm.environment or kubernetes.secrets")
            for name, value in SECRETS_OF_LOGGERS.items()
        ],
    ],
)
def test_a_credential_is_refused_and_not_repeated(keys, remedy):
    text = refusal(**TASK, **keys)
    assert "contains a credential" in text
    assert remedy in text
    assert "hunter2" not in text


def test_storage_is_a_uri_or_a_mapping():
    assert job(storage="s3://b/p").storage == job(storage={"uri": "s3://b/p"}).storage
    assert job(storage={"uri": "s3://b", "endpoint": "http://h:9000"}).storage.endpoint == "http://h:9000"
    for entry in ({"region": "eu"}, {"endpoint": "http://h"}, {"profile": "p"}, {"addressing": "path"}):
        for keys in (
            {"storage": {"uri": "runs"} | entry},
            {"data": {"d": {"uri": "https://h/x"} | entry}},
            {"data": {"d": {"uri": "x"} | entry}},
        ):
            assert "are only for s3://bucket/…" in refusal(**TASK, **keys)


def test_a_location_has_the_options_of_the_s3_client():
    options = {"endpoint": "http://h:9000", "region": "eu", "profile": "p", "addressing": "path"}
    made = job(storage={"uri": "s3://b/p", **options, "retry": "90s"})
    assert made.storage.location == Location("s3://b/p", **options, retry_s=90)
    assert job(storage="s3://b").storage.location == Location("s3://b", addressing="auto", retry_s=600)
    assert job(storage="runs").storage.location == Location("runs")
    assert job(data={"d": {"uri": "s3://d", **options}}).data["d"].location == Location("s3://d", **options)


def test_data_on_s3_uses_the_options_of_the_storage_unless_it_has_its_own():
    storage = {"uri": "s3://b", "endpoint": "http://h:9000", "region": "eu", "profile": "p", "retry": 5}
    data = {
        "same": {"uri": "s3://d/k"},
        "own": {"uri": "s3://d/k", "region": "us"},
        "web": {"uri": "https://h/x"},
        "path": {"uri": "x"},
    }
    made = job(storage=storage, data=data)
    assert made.data_location("same") == replace(made.storage.location, uri="s3://d/k")
    assert made.data_location("own") == Location("s3://d/k", region="us", retry_s=5)
    assert made.data_location("web") == Location("https://h/x")
    assert made.data_location("path") == Location("x")
    assert job(data=data).data_location("same") == Location("s3://d/k")


@pytest.mark.parametrize(
    "name",
    [
        *("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ENABLE_K8S_TOKEN_AUTH"),
        *("RAY_ADDRESS", "RAY_USAGE_STATS_ENABLED", "CLUSTERTRAIN_TOKEN", "CLUSTERTRAIN_X"),
    ],
)
def test_what_protects_a_run_is_refused_in_env(name):
    assert "this variable is set by clustertrain" in refusal(**TASK, env={name: "x"})
    others = {"RAY_BACKEND_LOG_LEVEL": "debug", "LD_PRELOAD": "/a.so", "MY_RAY_ADDRESS": "x"}
    others |= {"AWS_PROFILE": "p", "AWS_REGION": "eu"}
    assert job(env=others).env == others


def test_a_checksum_is_kept_in_lower_case():
    assert job(data={"d": {"uri": "x", "sha256": "AB" * 32}}).data["d"].sha256 == "ab" * 32


def test_environment_and_arguments_of_a_script_are_text():
    made = Job.model_validate(
        SCRIPT | {"args": ["--lr", 0.5, 3], "resume_args": ["--from", 7], "env": {"N": 8, "A": "x"}}
    )
    assert made.args == ("--lr", "0.5", "3")
    assert made.resume_args == ("--from", "7")
    assert made.env == {"N": "8", "A": "x"}


# ------------------------------------------------------------------------------------ the round trip

COUNTS = st.integers(1, 10**6)
SECONDS = st.floats(0.001, 1e6)
PRINTABLE = st.text(st.characters(exclude_categories=("C",)).filter(str.isprintable), min_size=1, max_size=12)
WORDS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
PATHS = PRINTABLE.map("/data/".__add__)
SHARED = {
    "data": PATHS.filter(lambda path: "?" not in path).map(lambda path: {"d": {"uri": path, "per": "node"}}),
    "resources": st.sampled_from(
        [{"nodes": [1, 3], "gpus_per_node": 4}, {"nodes": [1, 3], "workers": [2, 6]}]
    )
    | st.floats(0.1, 64).map(lambda cpus: {"cpus_per_worker": cpus}),
    "storage": SECONDS.map(lambda retry: {"uri": "s3://b/$p", "profile": "$x", "retry": retry}),
    "failures": SECONDS.map(lambda seconds: {"grace": seconds, "watchdog": {"step": seconds}}),
    "env": st.dictionaries(
        st.from_regex(r"[A-Z_][A-Z0-9_]{0,5}", fullmatch=True),
        WORDS.map(lambda word: word.replace("$", "$$")),
        max_size=3,
    ),
    "code": PATHS,
    "slurm": st.tuples(st.sampled_from(["gpu,short", "0123", "1e5", "on", "null"]), PRINTABLE).map(
        lambda words: {"partition": words[0], "setup": [f"echo {words[1]};"]}
    ),
}
NAMED_ARGS = {"args": st.dictionaries(WORDS, VALUES, max_size=3)}
TRAIN = st.fixed_dictionaries(
    {"epochs": COUNTS, "batch_size": COUNTS},
    optional={
        "clip_norm": st.floats(1e-6, 1e6),
        "compile": st.booleans() | st.just({"mode": "max-autotune"}),
        "early_stop": PRINTABLE.map(lambda metric: {"metric": metric, "mode": "min", "patience": 3}),
        "log": st.lists(st.sampled_from(["tensorboard", "mlflow", "wandb"]), unique=True),
    },
)
CHECKPOINT = st.fixed_dictionaries(
    {"every": st.just("auto") | SECONDS.map(lambda minutes: {"minutes": minutes})},
    optional={"async": st.booleans()},
)
JOBS = st.one_of(
    st.fixed_dictionaries(
        {"name": st.just("a"), "task": st.just("m.n:C"), "train": TRAIN},
        optional={"checkpoint": CHECKPOINT, **NAMED_ARGS, **SHARED},
    ),
    st.fixed_dictionaries(
        {"name": st.just("a"), "function": st.just("m:f")},
        optional={"checkpoint": CHECKPOINT, **NAMED_ARGS, **SHARED},
    ),
    st.fixed_dictionaries(
        {"name": st.just("a"), "script": st.just("x/train.py")},
        optional={"args": st.lists(WORDS, max_size=3), "resume_args": st.lists(WORDS, max_size=2), **SHARED},
    ),
)


@pytest.mark.slow
@settings(deadline=None)
@given(JOBS)
def test_a_job_that_is_dumped_and_parsed_gives_itself(keys):
    """tests/job/test_reference.py has the sections, tests/node/test_quantities.py the quantities."""
    job = Job.model_validate(keys)
    text = dump_job(job)
    again = parse_job(text, "job.yaml")
    assert again == job == parse_job(record_of(job), "job.yaml")
    assert parse_job(dump_job(job, defaults=True), "job.yaml") == job
    assert dump_job(again) == text
    assert job_hash(again) == job_hash(job)
    assert identity_difference(job, again) == []


def test_a_function_saves_by_time_by_default():
    function = {"name": "a", "function": "m:f"}
    assert Job.model_validate(function).checkpoint.every.minutes == 10
    assert Job.model_validate(function | {"checkpoint": {"keep_last": 1}}).checkpoint.every.minutes == 10
    told = Job.model_validate(function | {"checkpoint": {"every": {"steps": 5}}}).checkpoint.every
    assert (told.steps, told.minutes, told.epochs) == (5, None, None)
