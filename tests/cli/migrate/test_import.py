"""`clustertrain import`: scripts of the shape of public ones become job files that `check` accepts."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clustertrain.cli.main import main
from clustertrain.cli.migrate.job_text import job_text
from clustertrain.cli.migrate.sbatch import found_in_command, found_in_script
from clustertrain.errors import JobError
from clustertrain.job.yaml_reader import JobLoader

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "port.md"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with scripts, which is the current one."""
    for script in ("train.py", "src/train.py", "pkg/train.py"):
        (tmp_path / script).parent.mkdir(exist_ok=True)
        (tmp_path / script).touch()
    monkeypatch.chdir(tmp_path)


def imported(*source):
    """The job file of an import, as data, and what is not in it; `check` accepts it."""
    done = CliRunner().invoke(main, ["import", *source])
    assert done.exit_code == 0, done.output
    checked = CliRunner().invoke(main, ["check", "--no-code", "job.yaml"])
    assert checked.exit_code == 0, checked.output
    text = Path("job.yaml").read_text()
    left_out = re.findall(r"(?m)^#   (.*)$", text)
    assert [f"not in the job file: {piece}" for piece in left_out] == done.output.splitlines()[:-2]
    job = yaml.safe_load(text)
    assert job.pop("version") == 1
    return job, left_out


def of_script(text):
    Path("train.sbatch").write_text(text)
    return imported("train.sbatch")


TYPES = """\
#!/bin/bash -l
#SBATCH -N 2                      # two nodes, with gpus each
#SBATCH --gpus-per-node=h100:2
#SBATCH --ntasks-per-node 1
#SBATCH --cpus-per-task 24
#SBATCH --mem=96G
#SBATCH --time=1-12:00:00
#SBATCH -p gpu -A vision
#SBATCH --exclude=node[07-09]
#SBATCH --switches=1
#SBATCH --error=logs/gpt.err
module purge
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
source /sw/envs/train/bin/activate
DATA=/data/openwebtext
cd src
srun --cpu-bind=none torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc_per_node=$SLURM_GPUS_ON_NODE \\
    --node_rank=$SLURM_NODEID --master_addr=$MASTER_ADDR train.py --data "$DATA" 2>&1 | tee -a log.txt
cp -r out /archive
"""
NO_GPUS = """\
#SBATCH --cpus-per-task=8
#SBATCH --mem-per-cpu=4G
#SBATCH --gres=tmpdisk:100
if [ -d data ]; then
  export A=1
fi
OMP_NUM_THREADS=2 python -m torch.distributed.launch --nproc_per_node=4 train.py --out $SLURM_JOB_ID
"""
GUESSED = "gpus_per_worker: 1: GPUs are not requested, so each worker gets one; without GPUs remove"
SCRIPTS = {
    "types, setup and a command after it": (
        TYPES,
        {
            "name": "train",
            "script": "train.py",
            "args": ["--data", "/data/openwebtext"],
            "resources": {"nodes": 2, "gpus_per_node": 2, "cpus_per_worker": 12, "memory_per_worker": "48Gi"},
            "code": "src",
            "slurm": {
                **{"gpu_type": "h100", "time_limit": "1d12h", "partition": "gpu", "account": "vision"},
                "options": ["--exclude=node[07-09]"],
                "setup": [
                    *("module purge", "source /sw/envs/train/bin/activate"),
                    *("DATA=/data/openwebtext", "cd src"),
                ],
            },
        },
        [
            *("line 10: --switches=1", "line 11: --error=", "line 13: export MASTER_ADDR="),
            *("line 17: --cpu-bind=none", "line 17: tee -a log.txt", "line 19: cp -r out /archive: it runs"),
        ],
    ),
    "no GPUs, and a condition": (
        NO_GPUS,
        {
            "name": "train",
            "script": "train.py",
            "args": ["--out", "$SLURM_JOB_ID"],
            "resources": {
                **{"workers": 4, "gpus_per_worker": 1, "cpus_per_worker": 2, "memory_per_worker": "8Gi"},
            },
            "env": {"OMP_NUM_THREADS": "2"},
        },
        [
            *("line 3: --gres=tmpdisk:100: its value", "line 4: if [ -d data ]", "line 5: export A=1"),
            *("line 6: fi", "line 7: torch.distributed.launch: the script gets no --local_rank"),
            *("line 7: $SLURM_JOB_ID: nothing replaces it", f"line 7: {GUESSED}"),
        ],
    ),
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_script_becomes_a_job_file(case):
    text, expected, beginnings = SCRIPTS[case]
    job, left_out = of_script(text)
    assert job == expected
    assert len(left_out) == len(beginnings), left_out
    for piece, beginning in zip(left_out, beginnings, strict=True):
        assert piece.startswith(beginning)


COMMANDS = {
    "torchrun --nproc-per-node 8 train.py": {"resources": {"workers": 8, "gpus_per_worker": 1}},
    "torchrun train.py --lr 0.1": {"resources": {"workers": 1}, "args": ["--lr", "0.1"]},
    "torchrun --nnodes=1:4 --nproc_per_node=8 --max-restarts 2 train.py": {
        "resources": {"nodes": [1, 4], "gpus_per_node": 8},
        "failures": {"retries": 2},
    },
    "torchrun --standalone --nproc-per-node=gpu -m pkg.train -m 1": {
        **{"resources": {"workers": 1}, "module": "pkg.train", "name": "pkg-train", "args": ["-m", "1"]},
    },
    "NCCL_DEBUG=INFO MASTER_PORT=1 python -m torch.distributed.run --nproc-per-node 2 train.py": {
        "resources": {"workers": 2, "gpus_per_worker": 1},
        "env": {"NCCL_DEBUG": "INFO"},
    },
    "/envs/a/bin/accelerate launch --multi_gpu --num_machines 2 --num_processes 16 train.py": {
        "resources": {"nodes": 2, "gpus_per_node": 8},
        "interpreter": "/envs/a/bin/python",
    },
    "accelerate launch --cpu --num_processes 4 --mixed_precision bf16 train.py": {
        "resources": {"workers": 4},
        "env": {"ACCELERATE_MIXED_PRECISION": "bf16"},
    },
    "srun -N2 --ntasks-per-node=4 --gres=gpu:4 --label python -u train.py": {
        "resources": {"nodes": 2, "gpus_per_node": 4},
    },
    "srun -n 4 python train.py": {"resources": {"workers": 4}},
    "srun -N 4 -n 4 --gpus-per-task=1 --cpus-per-task=6 python train.py": {
        "resources": {"nodes": 4, "gpus_per_node": 1, "cpus_per_worker": 6},
    },
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_becomes_a_job_file(command):
    job, _ = imported("--", *shlex.split(command))
    own = {"name": "train", "script": "train.py"} if "-m pkg" not in command else {}
    assert job == own | COMMANDS[command]


@pytest.mark.parametrize(
    ("time", "limit"), [("30", "30m"), ("20:30", "20m30s"), ("12:00:00", "12h"), ("2-3:30", "2d3h30m")]
)
def test_a_time_is_read_as_slurm_reads_it(time, limit):
    job, _ = of_script(f"#SBATCH -t {time}\nsrun python train.py\n")
    assert job["slurm"] == {"time_limit": limit}


def test_paths_are_relative_to_the_job_file(tmp_path):
    for output, script, code in (
        ("jobs/job.yaml", "train.py", ".."),
        ("jobs/b.yaml", "/sw/a/train.py", "/sw/a"),
    ):
        done = CliRunner().invoke(main, ["import", "-o", output, "--", "torchrun", script])
        assert done.exit_code == 0, done.output
        job = yaml.safe_load(Path(output).read_text())
        assert (job["script"], job["code"]) == ("train.py", code)


def test_no_secret_is_copied():
    secrets = ["geheim1", "geheim2", "geheim3", "geheim4", "hf_abcdefghijklmnop", "geheim6", "geheim7"]
    lines = [
        f"export HF_TOKEN={secrets[0]}",
        f"export WANDB_API_KEY='{secrets[1]}' OUT=$(date)",
        f"DB_PASSWORD={secrets[2]} ./migrate.sh",
        f"wandb login {secrets[3]}",
        f"source setup.sh https://example.org?x={secrets[4]}",
        f"AWS_SECRET_ACCESS_KEY={secrets[5]} torchrun train.py --hub_token {secrets[6]} --pad_token '<p>' "
        + secrets[4],
    ]
    Path("a.sh").write_text("\n".join(lines))
    done = CliRunner().invoke(main, ["import", "a.sh"])
    assert done.exit_code == 0, done.output
    text = Path("job.yaml").read_text()
    assert not [secret for secret in secrets if secret in text + done.output]
    for number in range(1, 7):
        assert re.search(rf"(?m)^#   line {number}: .*a secret is not copied", text), text
    assert yaml.safe_load(text)["args"] == ["--pad_token", "<p>"]


def test_it_prints_the_next_command_and_overwrites_nothing():
    command = ["import", "-o", "a b.yaml", "--", "torchrun", "train.py"]
    wrote, following = CliRunner().invoke(main, command).output.splitlines()
    assert wrote == "wrote a b.yaml"
    assert following.endswith("clustertrain check 'a b.yaml'")
    again = CliRunner().invoke(main, command)
    assert (again.exit_code, "exists already" in again.output) == (2, True)


def test_the_example_prints_what_the_page_shows():
    page = PAGE.read_text()
    command = re.search(r"(?m)^    clustertrain (import -o - -- .*)$", page)[1]
    shown = re.search(r"```text\n(# From .*?)```\n", page, re.DOTALL)[1]
    assert CliRunner().invoke(main, shlex.split(command)).output == shown


# ------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#SBATCH -N 2\npython prepare.py\n", "a.sh: launch lines found: none"),
        ("srun python a.py\n\ntorchrun b.py && torchrun c.py\n", "a.sh: launch lines found: 1, 3, 3"),
        ("\ntorchrun $SCRIPT --lr 1\n", "line 2: the name of the script is not there: $SCRIPT"),
        ("", "a.sh: launch lines found: none"),
    ],
)
def test_without_one_launch_line_nothing_is_written(text, said):
    Path("a.sh").write_text(text)
    done = CliRunner().invoke(main, ["import", "a.sh"])
    assert (done.exit_code, said in done.output) == (2, True), done.output
    assert not Path("job.yaml").exists()


PARTS = """\
torchrun srun python python3 -m train.py accelerate launch --nnodes 2:4 --nproc-per-node gpu -n 0 -N -1 -np
--gres=gpu:a:b:c --time=- $A ${A} ${A:-b} $(x `y $((1*2)) $((A/0)) A=$A A=1 B+=( ) && || | ; & > 2>&1 << #
'#SBATCH -N' ' " \\ export if fi { } .. / ~ ../train.py /a/b.py cd source a/bin/activate -- - '' é"""
WORDS = st.sampled_from(PARTS.split())
LINES = st.lists(WORDS, max_size=8).map(" ".join)
TEXTS = st.one_of(st.text(max_size=60), st.lists(LINES, max_size=6).map("\n".join))


def only_job_errors(read):
    """Reads a launch: the result is a job file, whose comments hide no key, or an error with a message."""
    try:
        found = read()
    except JobError as error:
        assert str(error)
        return
    job = yaml.load(job_text(found, Path()), JobLoader)
    assert {"version", "name", "resources"} < job.keys()


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS)
@example("A='$A $A'\nsrun $A")
@example("torchrun ..")
@example("torchrun --nproc-per-node 9999999999999999999 train.py")
@example("export A[=1\ntorchrun train.py")
@example("cd ''\ntorchrun train.py")
@example("#SBATCH --chdir=\nsrun python train.py")
@example("#SBATCH --mem=999999999999999T\nsrun python train.py")
def test_no_text_is_a_traceback(text):
    Path("a.sh").write_text(text, errors="replace")
    only_job_errors(lambda: found_in_script(Path("a.sh")))


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(WORDS, st.text(max_size=5)), min_size=1, max_size=8))
def test_no_command_is_a_traceback(words):
    only_job_errors(lambda: found_in_command(words))
