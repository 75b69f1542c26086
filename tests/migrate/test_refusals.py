"""`clustertrain import` of what it does not understand: the lines, exit 2, nothing written, no traceback."""

import json
import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clustertrain.cli.main import main
from clustertrain.errors import JobError
from clustertrain.job.yaml_reader import JobLoader
from clustertrain.migrate.job_text import job_of, job_text
from clustertrain.migrate.launch import launch_of_command, launch_of_file

FILES = Path(__file__).parent / "files"


def refusal(name, text):
    """The error of the import of a file with this text."""
    if isinstance(text, bytes):
        Path(name).write_bytes(text)
    else:
        Path(name).write_text(text)
    done = CliRunner().invoke(main, ["import", name])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2, done.output
    assert not Path("job.yaml").exists()
    return done.output


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


POD = "{template: {spec: {containers: [{name: a}]}}}"
REFUSALS = {
    "control structures": (
        "a.sh",
        "if [ -n $A ]; then\n  B=1\nfi\nfor i in 1 2; do\n  torchrun train.py --seed $i\ndone\n",
        ["line 1: if [ -n $A ]; then", "line 3: fi", "line 4: for i in 1 2; do", "line 6: done"],
    ),
    "a function": ("a.sh", "run() {\n  torchrun $@\n}\nrun train.py\n", ["line 1: run() {", "line 3: }"]),
    "an option": ("a.sh", "torchrun --new-option 3 train.py\n", ["line 1: --new-option"]),
    "an option of sbatch": ("a.sh", "#SBATCH --new=3\nsrun python train.py\n", ["line 1: --new=3"]),
    "a value": ("a.sh", "#SBATCH --time=soon\nsrun python t.py\n", ["line 1: --time=soon: its value"]),
    "another resource than GPUs": (
        "a.sh",
        "#SBATCH --gpus-per-node=4\n#SBATCH --gres=tmpdisk:100\nsrun python t.py\n",
        ["line 2: --gres=tmpdisk:100: its value"],
    ),
    "another file": ("a.sh", "srun bash inner.sh\n", ["line 1: inner.sh: the command is in another file"]),
    "a script in a variable": ("a.sh", "torchrun $SCRIPT\n", ["line 1: ${SCRIPT}: the name of the script"]),
    "a folder in a command": (
        "a.sh",
        "cd $(git rev-parse --show-toplevel)\ntorchrun train.py\n",
        ["line 1: cd $(git rev-parse --show-toplevel): the folder is known only where it runs"],
    ),
    "an open quote": ("a.sh", "echo 'a\ntorchrun train.py\n", ["line 1:", "is not closed"]),
    "a here-document": ("a.sh", "cat <<EOF > hosts\nEOF\ntorchrun train.py\n", ["line 1: cat <<EOF"]),
    "several launches": (
        "a.sh",
        "torchrun a.py\n\ntorchrun b.py\n",
        ["several launches", "line 1: a.py", "line 3: b.py"],
    ),
    "no launch": ("a.sh", "echo hello\n", ["no launch was found"]),
    "an empty file": ("a.sh", "\n", ["is empty"]),
    "a binary file": ("a.sh", b"\x7fELF\x00\xff\xfe", ["a.sh:1:6: byte 0xff is not UTF-8"]),
    "NUL": ("a.sh", "torchrun\0train.py", ["is no text"]),
    "a program without ranks": ("a.py", "print(1)\n", ["starts no ranks", "-- torchrun a.py"]),
    "no program": ("a.py", "def f(:\n", ["starts no ranks"]),
    "another kind": ("a.yaml", "apiVersion: v1\nkind: Pod\n", ["is no PyTorchJob"]),
    "several documents": ("a.yaml", "kind: RayJob\n---\nkind: PyTorchJob\n", ["has several documents"]),
    "no YAML": ("a.yaml", "kind: [PyTorchJob\n", ["not YAML"]),
    "a program in the image": (
        "a.yaml",
        f"kind: PyTorchJob\nspec: {{pytorchReplicaSpecs: {{Master: {POD}}}}}\n",
        ["the program is in the image"],
    ),
    "a job file": ("a.yaml", "name: a\nscript: train.py\n", ["is no PyTorchJob"]),
    "a value that no job file can have": (
        "a.sh",
        "#SBATCH --partition='a b'\nsrun python t.py\n",
        ["a value of it is not valid in a job file", "slurm.partition"],
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_not_understood_is_named(case):
    name, text, parts = REFUSALS[case]
    output = refusal(name, text)
    for part in parts:
        assert part in output
    assert "Traceback" not in output


def test_a_file_that_cannot_be_opened():
    Path("folder").mkdir()
    os.mkfifo("pipe")
    for name, why in (
        ("missing.sh", "there is no such file"),
        ("folder", "is a folder"),
        ("pipe", "is not a regular file"),
    ):
        done = CliRunner().invoke(main, ["import", name])
        assert (done.exit_code, why in done.output) == (2, True), done.output


def test_the_job_file_that_cannot_be_written():
    Path("file").touch()
    done = CliRunner().invoke(main, ["import", "-o", "file/job.yaml", "--", "torchrun", "train.py"])
    assert (done.exit_code, "cannot be written" in done.output) == (4, True)


PARTS = """\
torchrun srun python python3 -m train.py accelerate launch deepspeed mpirun bash -c env exec time uv run
conda apptainer --nnodes 2:4 --nproc-per-node gpu -n 0 -N -1 -np --gres=gpu:a:b:c --time=- $A ${A}
${A:-b} $(x `y $((1*2)) $((A/0)) A=$A A=1 B+=( ) && || | ; & > 2>&1 << # '#SBATCH -N' ' " \\ export if fi
{ } --hostfile . .. / ~ ../train.py /a/b.py cd source a/bin/activate -- - '' é"""
FIELDS = """\
spec metadata name trainer template containers command args env volumes volumeMounts resources limits
replicas pytorchReplicaSpecs Master Worker runPolicy elasticPolicy minReplicas entrypoint rayClusterSpec
workerGroupSpecs numNodes image valueFrom secretKeyRef affinity"""
WORDS, KEYS = (st.sampled_from(text.split()) for text in (PARTS, FIELDS))
LINES = st.lists(WORDS, max_size=8).map(" ".join)
TEXTS = st.one_of(st.text(max_size=60), st.lists(LINES, max_size=6).map("\n".join))


def only_job_errors(read):
    """Reads a launch: the result is a job file, whose comments hide no key, or an error with a message."""
    try:
        launch = read()
        text, _ = job_text(launch)
    except JobError as error:
        assert str(error)
        return
    job = yaml.load(text, JobLoader)
    assert job == job_of(launch)[0]


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS)
@example('A=\'bash -c "$A"\'\nbash -c "$A"')
@example("A='$A $A'\nsrun $A")
@example("torchrun ..")
@example("exec " * 3000 + "torchrun train.py")
@example("torchrun --nproc-per-node 9999999999999999999 train.py")
@example("export A[=1\ntorchrun train.py")
@example("cd ''\ntorchrun train.py")
@example("#SBATCH --chdir=\nsrun python train.py")
@example("#SBATCH --mem=999999999999999T\nsrun python train.py")
def test_no_text_is_a_traceback(text):
    for name in ("a.sh", "a.yaml", "a.py"):
        Path(name).write_text(text, errors="replace")
        only_job_errors(lambda name=name: launch_of_file(Path(name)))


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(WORDS, st.text(max_size=5)), max_size=8))
def test_no_command_is_a_traceback(words):
    only_job_errors(lambda: launch_of_command(words))


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=6), st.just("torchrun train.py")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=4),
    ),
    max_leaves=20,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["PyTorchJob", "TrainJob", "RayJob"]), VALUES)
def test_no_manifest_is_a_traceback(kind, value):
    Path("a.yaml").write_text(json.dumps({"kind": kind, "spec": value}))
    only_job_errors(lambda: launch_of_file(Path("a.yaml")))
