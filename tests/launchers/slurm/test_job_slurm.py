"""The section `slurm`: a value is one word of one option of sbatch, or it is refused."""

import pytest
from pydantic import ValidationError

from clustertrain.job.file import dump_job, load_job, parse_job
from clustertrain.job.model import Job
from clustertrain.launchers.slurm.section import BREAKING_OPTIONS, RESERVED_OPTIONS

FUNCTION = {"name": "a", "function": "m:f"}


def job(**slurm) -> Job:
    image = {"image": "train:1"} if slurm.get("container", "none") != "none" else {}
    return Job.model_validate(FUNCTION | image | {"slurm": slurm})


def refusal(**slurm) -> str:
    with pytest.raises(ValidationError) as caught:
        job(**slurm)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("constraint", "(a100*2&ib)|h100"),
        ("dependency", "afterok:1?afterany:2"),
        ("dependency", "after:12+10,afternotok:3"),
        ("account", "user@domain"),
        ("gpu_type", "nvidia_a100-sxm4-80gb"),
    ],
)
def test_the_words_of_real_sites_are_accepted(key, value):
    assert value in job(**{key: value}).slurm.model_dump(by_alias=True).values()


@pytest.mark.parametrize(
    ("slurm", "message"),
    [
        ({"signal": "KILL"}, "'USR1', 'USR2' or 'TERM'"),
        ({"at_time_limit": "ignore"}, "'stop' or 'requeue'"),
        ({"at_time_limit": "requeue", "requeue": False}, "at_time_limit"),
        ({"lead_time": 0}, "greater than 0"),
        ({"setup": "module load cuda"}, "valid tuple"),
        ({"setup": [" "]}, "one line of shell"),
        ({"setup": ["module load \\"]}, "must not end with a backslash"),
        ({"setup": ["#SBATCH --nodes=9"]}, "put it under slurm.options"),
        ({"setup": ["#PBS -l nodes=9"]}, "put it under slurm.options"),
        ({"environment": ["A B"]}, "should match pattern"),
        *(
            ({"environment": [name]}, "so that no secret of the login environment is passed on unnoticed")
            for name in ("ALL", "NONE", "NIL", "all")
        ),
        ({"mounts": ["/a:/b:rx"], "container": "pyxis"}, "must be /folder"),
        ({"mounts": ["/a,/b"], "container": "pyxis"}, "must be /folder"),
        ({"mounts": ["/a"]}, "/a is given without a container"),
        ({"output": "~/logs"}, "'~' is not expanded"),
        ({"output": "logs of mine"}, "letters, digits and"),
        ({"python": "~/python"}, "'~' is not expanded"),
    ],
)
def test_a_wrong_value_is_refused_with_its_rule(slurm, message):
    assert message in refusal(**slurm)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"slurm": {"container": "apptainer"}}, "apptainer is given without an image"),
        ({"slurm": {"container": "pyxis"}}, "pyxis is given without an image"),
        ({"image": "/images/train.sif", "slurm": {"container": "pyxis"}}, "only apptainer runs a .sif file"),
        *(({"image": image}, "must be an image") for image in ("", " ", "-v", "a\nb", "a\x07", " train:1")),
    ],
)
def test_a_container_and_an_image_that_do_not_fit_are_refused(keys, message):
    with pytest.raises(ValidationError) as caught:
        Job.model_validate(FUNCTION | keys)
    assert message in str(caught.value)


def test_an_image_alone_is_used_by_no_container_and_a_sif_file_by_apptainer():
    assert Job.model_validate(FUNCTION | {"image": "train:1"}).slurm.container == "none"
    keys = {"image": "/images/train.sif", "slurm": {"container": "apptainer"}}
    assert Job.model_validate(FUNCTION | keys).image == "/images/train.sif"


# --------------------------------------------------------------------------------------- raw options


@pytest.mark.parametrize("name", sorted({**RESERVED_OPTIONS, **BREAKING_OPTIONS}))
def test_options_that_the_kit_sets_itself_or_that_break_a_run(name):
    for option in (f"--{name}", f"--{name}=1"):
        text = refusal(options=[option])
        if name in RESERVED_OPTIONS:
            assert f"--{name} is set by clustertrain, from {RESERVED_OPTIONS[name]}" in text
            assert "--nodes" in text.partition("its own options are ")[2]
        else:
            assert f"--{name} is not allowed" in text


@pytest.mark.parametrize("option", ["--part=x", "--no=5", "--exclu", "--sig=B:9@1", "--test", "--o=/etc/x"])
def test_a_shortened_name_is_the_option_that_sbatch_takes_it_for(option):
    text = refusal(options=[option])
    assert "is set by clustertrain" in text or "is not allowed" in text


@pytest.mark.parametrize(
    "option",
    ["-N5", "nodes=3", "--", "--comment 'a'", "--comment=", "--Nice"],
)
def test_what_sbatch_would_split_is_no_option(option):
    assert "must be one long option with its value" in refusal(options=[option])


# --------------------------------------------------------------------------------- one word of one option

WORDS = ("partition", "account", "qos", "reservation", "constraint", "job_name", "dependency", "gpu_type")
LISTS = ("options", "environment", "mounts", "setup")
CONTROLS = ["a\nb", "a\n#SBATCH --nodes=9", "a\rb", "a\ab", "\x1b[31m", "a\x7f", "a\0", "a\u2028b", "a\x85b"]
SPLIT = ["a --nodes=9", 'a"b', "a'b", "$(touch canary)", "`touch canary`", "a #b", "a;touch canary", "a\\b"]
NO_WORDS = [*CONTROLS, *SPLIT, "é", ""]


@pytest.mark.parametrize(
    ("keys", "values"),
    [(("python", "mounts", "setup"), CONTROLS), ((*WORDS, "output", "options", "environment"), NO_WORDS)],
    ids=["any text", "a word of an #SBATCH line"],
)
def test_what_sbatch_or_a_shell_would_split_is_refused(keys, values):
    for key in keys:
        mounted = {"container": "pyxis"} if key == "mounts" else {}
        for value in values:
            given = f"--comment={value}" if key == "options" else value
            assert f"slurm.{key}" in refusal(**mounted, **{key: [given] if key in LISTS else given})


def test_variables_are_replaced_in_paths_and_left_to_the_shell_in_setup(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: a\nfunction: m:f\nimage: ${IMAGES}/a.sif\nslurm:\n"
        "  {container: apptainer, python: '${SW}/python', output: '${SW}', mounts: ['${SW}:/sw'],\n"
        "   setup: ['echo ${SW} $(date)']}\n"
    )
    made = load_job(path, environ={"SW": "/sw$1", "IMAGES": "/images"}, sets=["slurm.output=logs"])
    assert (made.image, made.slurm.python) == ("/images/a.sif", "/sw$1/python")
    assert made.slurm.mounts == ("/sw$1:/sw",)
    assert made.slurm.setup == ("echo ${SW} $(date)",)
    assert parse_job(dump_job(made), "job.yaml") == made
