"""What the user's code draws or orders before a training is the same on all ranks and at every start."""

import os
import random
import subprocess
import sys

import pytest

pytestmark = pytest.mark.parametrize("start", ["without Ray"], indirect=True)

TREES = ("oak", "elm", "fir", "ash", "yew")
LABELS = f"""
import torch
from torch.utils.data import Dataset
from clustertrain import Task

NAMES = [{TREES}[i % 5] for i in range(80)]

class Trees(Dataset):
    def __init__(self):
        self.ids = {{name: i for i, name in enumerate(set(NAMES))}}
        print("labels", self.ids, flush=True)
    def __len__(self):
        return len(NAMES)
    def __getitem__(self, i):
        return torch.nn.functional.one_hot(torch.tensor(i % 5), 5).float(), self.ids[NAMES[i]]

class Forest(Task):
    lr = 0.05
    def model(self):
        return torch.nn.Linear(5, 5)
    def train_data(self, data):
        return Trees()
    eval_data = train_data
"""
HOLDOUT = """
import random
import numpy, torch
from torch.utils.data import Subset, TensorDataset
from clustertrain import Task

class Holdout(Task):
    lr = 0.01
    def __init__(self):
        self.ids = list(range(200))
        random.shuffle(self.ids)
        print("held out", sorted(self.ids[160:]), flush=True)
        print("others", numpy.random.permutation(9), torch.randperm(9).tolist(), flush=True)
    def model(self):
        return torch.nn.Linear(8, 2)
    def full(self):
        x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, (x.sum(1) > 0).long())
    def train_data(self, data):
        return Subset(self.full(), self.ids[:160])
    def eval_data(self, data):
        return Subset(self.full(), self.ids[160:])
"""
OWN_LOOP = """
import os, random, signal
import torch.distributed as dist

def train(args):
    print("held out", sorted(random.sample(range(200), 40)), flush=True)
    dist.barrier()
    if not os.path.exists(args["started"]) and dist.get_rank() == 0:
        open(args["started"], "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
"""
BUCKET = "print('bucket', hash('oak') % 1000, flush=True)"


def printed(run, word):
    """What each rank of each attempt has printed after this word."""
    logs = sorted(run.run_dir.local_path(run.run_dir.attempts_key).glob("*/logs/*/rank-*.log"))
    lines = (line for log in logs for line in log.read_text().splitlines())
    return [line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} ")]


def in_python(program, seed):
    """What a process with this hash seed prints."""
    env = {**os.environ, "PYTHONHASHSEED": seed}
    return subprocess.check_output([sys.executable, "-c", program], env=env, text=True)


def write(tmp_path, text):
    (tmp_path / "code").mkdir(exist_ok=True)
    (tmp_path / "code" / "mine.py").write_text(text)
    return {"code": str(tmp_path / "code")}


def test_the_numbers_of_classes_from_a_set_are_those_of_the_seed_on_all_ranks_and_after_a_resume(
    make_run, start, tmp_path
):
    train = {"epochs": 2, "batch_size": 8, "seed": 2**32 + 5}
    run = make_run("labels", task="mine:Forest", train=train, **write(tmp_path, LABELS))
    start(run).end(0)
    assert run.result.metrics["accuracy"] == 1
    start(run, PYTHONHASHSEED="9").end(0)  # of the shell
    run.job_file.write_text(run.job_file.read_text().replace("epochs: 2", "epochs: 3"))
    start(run, PYTHONHASHSEED="9").end(0)
    assert (run.attempt.n, run.result.step, run.result.metrics["accuracy"]) == (2, 15, 1)
    of_seed = in_python(f"print({{n: i for i, n in enumerate(set({TREES}))}})", "5").strip()
    assert printed(run, "labels") == 8 * [of_seed], "two data sets on two ranks in two attempts"


# In CI launchers/slurm/test_ray_node.py has a hash seed of the job.
@pytest.mark.parametrize(
    ("sections", "seed"),
    [
        ({"function": "mine:train"}, "0"),
        ({"script": "mine.py"}, "0"),
        pytest.param({"script": "mine.py", "env": {"PYTHONHASHSEED": "7"}}, "7", marks=pytest.mark.nightly),
    ],
    ids=["function", "script", "env"],
)
def test_the_bucket_of_a_hash_is_the_same_in_a_function_and_a_script(
    make_run, start, tmp_path, sections, seed
):
    text = f"def train(args):\n    {BUCKET}\nif __name__ == '__main__':\n    train({{}})\n"
    run = make_run("buckets", **sections, **write(tmp_path, text))
    start(run).end(0)
    assert printed(run, "bucket") == 2 * [in_python(BUCKET, seed).split()[1]]


@pytest.mark.nightly  # in CI: a task in the tests above, a split in the one below
def test_a_split_drawn_by_a_task_is_that_of_the_seed_on_all_ranks_and_after_a_resume(
    make_run, start, tmp_path
):
    train = {"epochs": 1, "batch_size": 8, "seed": 3}
    run = make_run("holdout", task="mine:Holdout", train=train, **write(tmp_path, HOLDOUT))
    output = start(run).end(0)
    run.job_file.write_text(run.job_file.read_text().replace("epochs: 1", "epochs: 2"))
    output += start(run).end(0)
    ids = list(range(200))
    random.Random(3).shuffle(ids)
    assert printed(run, "held out") == 4 * [str(sorted(ids[160:]))]
    assert len({*printed(run, "others")}) == 1
    assert "is another one on" not in output
    assert (run.attempt.n, run.result.step) == (2, 20)


def test_a_split_drawn_by_a_function_is_that_of_the_recorded_seed_on_all_ranks_and_at_every_start(
    make_run, start, tmp_path
):
    args = {"started": str(tmp_path / "started")}
    keys = {"function": "mine:train", "args": args, "failures": {"retries": 1}}
    run = make_run("drawn", **keys, **write(tmp_path, OWN_LOOP))
    start(run).end(0)
    assert run.result.restarts == 1
    of_seed = random.Random(run.run_dir.function_seed.read().value)
    assert printed(run, "held out") == 4 * [str(sorted(of_seed.sample(range(200), 40)))]
    before = run.run_dir
    run.start("--no-ray", "--fresh").end(0)
    assert run.run_dir.function_seed.read() != before.function_seed.read()
