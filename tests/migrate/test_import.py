"""`clustertrain import`: files of the shape of public ones become job files that `check` accepts."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from clustertrain.cli.main import main

FILES = Path(__file__).parent / "files"
SECRETS = "hf_1234567890abcdefghij", "0123456789abcdef", "12345", "ghp_0123456789abcdef"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the files, which is the current one."""
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path


def clustertrain(*arguments):
    done = CliRunner().invoke(main, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def imported(*source, check=True):
    """The job file of an import, as data, and its comments; `check` accepts it."""
    done = clustertrain("import", *source)
    assert done.exit_code == 0, done.output
    text = Path("job.yaml").read_text()
    if check:
        checked = clustertrain("check", "--no-code", "job.yaml")
        assert checked.exit_code == 0, checked.output
    comments = {"no counterpart": "", "kept": "", "done": ""}
    for part in re.split(r"(?m)^# (?=No|Kept|Done)", text)[1:]:
        key = {"N": "no counterpart", "K": "kept", "D": "done"}[part[0]]
        comments[key] = "\n".join(re.findall(r"(?m)^#   (.*)$", part))
    job = yaml.safe_load(text)
    assert job.pop("version") == 1
    return job, comments


JOBS = {
    "torchrun_rendezvous.sbatch": (
        {
            "name": "ddp-four-nodes",
            "script": "train.py",
            "args": ["40", "5"],
            "resources": {"nodes": 4, "gpus_per_node": 1, "cpus_per_worker": 6},
            "env": {"LOGLEVEL": "INFO"},
        },
        [],
        ["line 12: head_node_ip=…: clustertrain finds", "line 17: --rdzv_endpoint", "line 14: echo"],
    ),
    "lightning.sbatch": (
        {
            "name": "train",
            "script": "train.py",
            "args": ["--max_epochs=20"],
            "resources": {"nodes": 2, "gpus_per_node": 8},
            "env": {"NCCL_DEBUG": "INFO", "PYTHONFAULTHANDLER": "1"},
            "slurm": {"time_limit": "2h", "lead_time": "1m30s"},
        },
        [
            "line 6: --mem=0",
            "line 10: source activate $1: an argument of the script",
            "16 tasks of srun: a script that reads SLURM_PROCID",
        ],
        [],
    ),
    "accelerate_multi_node.sbatch": (
        {
            "name": "finetune-llm",
            "script": "train.py",
            "args": ["--model", "tiny", "--learning_rate", "2e-5", "--output_dir", "runs/${SLURM_JOB_ID}"],
            "resources": {"nodes": 2, "gpus_per_node": 8, "cpus_per_worker": 12},
            "env": {"ACCELERATE_MIXED_PRECISION": "bf16"},
            "slurm": {
                "exclusive": True,
                "partition": "hopper-prod",
                "output": "/fsx/logs",
                "qos": "normal",
                "setup": ["source ~/.bashrc", "conda activate trainer", "module load cuda/12.1"],
            },
        },
        [
            "runs/${SLURM_JOB_ID}: nothing replaces it",
            "line 14: conda activate trainer: without clustertrain",
        ],
        ["--machine_rank ${SLURM_PROCID}", "MASTER_ADDR=$(scontrol", "tee -a log.txt: each rank has a log"],
    ),
    "deepspeed_hosts.sh": (
        {
            "name": "train",
            "script": "train.py",
            "args": ["--deepspeed", "--deepspeed_config", "ds_zero2.json", "--model_name_or_path", "tiny"],
            "resources": {"nodes": 2, "gpus_per_node": 4},
        },
        ["the script gets no --local_rank"],
        ["--master_port 29501"],
    ),
    "horovod.sbatch": (
        {
            "name": "hvd-resnet",
            "script": "train.py",
            "args": ["--epochs", "90"],
            "resources": {"nodes": 2, "gpus_per_node": 4},
            "slurm": {
                "partition": "gpu",
                "gpu_type": "v100",
                "time_limit": "1h30m",
                "account": "vision",
                "setup": ["ml load horovod"],
            },
        },
        ["horovodrun: a program for Horovod needs a Task"],
        ["--start-timeout 60"],
    ),
    "mpirun.sbatch": (
        {
            "name": "train",
            "script": "train.py",
            "resources": {"nodes": 2, "gpus_per_node": 4},
            "env": {"NCCL_DEBUG": "WARN"},
            "slurm": {"constraint": "a100&nvlink", "setup": ["module load openmpi"]},
        },
        ["in place of MPI's variables"],
        ["-x LD_LIBRARY_PATH", "-mca pml ob1", "--map-by ppr:4:node"],
    ),
    "launch_two_nodes.sh": (
        {
            "name": "train",
            "script": "train.py",
            "args": ["--arg1", "a", "--arg2", "b"],
            "resources": {"nodes": 2, "gpus_per_node": 4},
        },
        ["the script gets no --local_rank"],
        ["--node_rank=0", "--node_rank=1", "--master_addr=192.168.1.1", "--master_port=1234"],
    ),
    "apptainer.sbatch": (
        {
            "name": "d-unet",
            "script": "train.py",
            "args": ["--data", "/data"],
            "resources": {
                "workers": 2,
                "gpus_per_worker": 1,
                "cpus_per_worker": 8,
                "memory_per_worker": "64000Mi",
            },
            "image": "/sw/images/torch.sif",
            "slurm": {
                "gpu_type": "a100",
                "options": ["--mail-user=someone@example.org", "--mail-type=BEGIN,END,FAIL"],
                "requeue": False,
                "setup": ["mkdir -p logs"],
                "mounts": ["/scratch/data:/data", "/project:/project"],
                "container": "apptainer",
                "memory_as": "mem-per-cpu",
            },
        },
        ["/sw/images/torch.sif: it needs clustertrain"],
        ["--standalone", "--nv: clustertrain starts the container", "cd: the workers start"],
    ),
    "pyxis.sbatch": (
        {
            "name": "train",
            "script": "train.py",
            "args": ["--pad_token", "<pad>"],
            "resources": {"nodes": 2, "gpus_per_node": 8, "cpus_per_worker": 12},
            "env": {"TOKENIZERS_PARALLELISM": "false"},
            "image": "/images/pytorch.sqsh",
            "slurm": {
                "time_limit": "4h",
                "dependency": "singleton",
                "container": "pyxis",
                "mounts": ["/lustre:/lustre", "/home:/home"],
            },
        },
        ["HF_TOKEN=…: a secret", "WANDB_API_KEY=…: a secret", "--api_key …: a secret"],
        ["--mpi=pmix", "--container-workdir=/lustre/me"],
    ),
    "array.sbatch": (
        {
            "name": "train",
            "script": "train.py",
            "args": ["--seed", "${SLURM_ARRAY_TASK_ID}", "--out", "${OUT}"],
            "resources": {"workers": 1, "gpus_per_worker": 1, "memory_per_worker": "32Gi"},
            "env": {"STEPS": "100"},
            "interpreter": ".venv",
            "slurm": {
                "lead_time": "2m",
                "setup": ["OUT=$(pwd)/out", "[ -d data ] && ln -sfn data input || true"],
            },
        },
        [
            "--array=0-3%2: a run for each value",
            "${SLURM_ARRAY_TASK_ID}: nothing replaces it",
            "$@: more arguments",
            "cp -r out /archive: it runs after the training",
        ],
        ["--requeue", "trap scontrol", "wait", "line 14: MASTER_ADDR="],
    ),
    "imagenet_spawn.sbatch": (
        {
            "name": "train",
            "script": "train.py",
            "args": [
                *("-a", "resnet50", "--dist-url", "tcp://127.0.0.1:8888", "--multiprocessing-distributed"),
                *("--world-size", "1", "--rank", "0", "/data/imagenet"),
            ],
            "resources": {"workers": 1, "gpus_per_worker": 4, "cpus_per_worker": 40},
            "slurm": {"partition": "learn", "time_limit": "3d"},
        },
        [],
        [],
    ),
    "gpu_types.sbatch": (
        {
            "name": "gpt",
            "script": "train.py",
            "args": ["--batch_size", "12", "--data", "/data/openwebtext"],
            "resources": {
                "nodes": 2,
                "gpus_per_node": 2,
                "cpus_per_worker": 12,
                "memory_per_worker": "96Gi",
            },
            "env": {"OMP_NUM_THREADS": "12"},
            "slurm": {
                "gpu_type": "h100",
                "options": ["--exclude=node[07-09]", "--switches=1"],
                "reservation": "course",
                "output": "logs",
                "setup": ["module purge", "export PATH=/sw/tools/bin:$PATH"],
            },
        },
        [],
        ["MASTER_PORT=$(expr", "--node_rank=${SLURM_NODEID}", "--cpu-bind=none"],
    ),
    "singularity_shell.sbatch": (
        {
            "name": "train",
            "script": "train.py",
            "resources": {"workers": 1, "gpus_per_worker": 1},
            "env": {"NCCL_P2P_DISABLE": "1"},
            "image": "/images/torch.sif",
            "slurm": {
                "gpu_type": "rtx6000",
                "time_limit": "1d12h",
                "mounts": ["/scratch:/scratch"],
                "container": "apptainer",
            },
        },
        ["/images/torch.sif: it needs clustertrain"],
        [],
    ),
    "accelerate_local.sh": (
        {
            "name": "train",
            "script": "train.py",
            "args": ["--report_to", "wandb"],
            "resources": {"workers": 2, "gpus_per_worker": 1},
            "env": {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"},
        },
        ["CUDA_VISIBLE_DEVICES=2,3: GPUs are given to the workers"],
        ["--multi_gpu", "--main_process_port 0"],
    ),
    "deepspeed_include.sh": (
        {
            "name": "package-train",
            "module": "package.train",
            "args": ["--zero_stage", "3"],
            "resources": {"workers": 1, "gpus_per_worker": 1},
        },
        [
            "--include localhost:0,1,2,3: each worker gets its GPUs",
            "one process for each GPU: the number of GPUs of a node is not in the file",
        ],
        ["--master_port 61000"],
    ),
    "spawn.py": (
        {"name": "spawn", "script": "spawn.py", "resources": {"workers": 1, "gpus_per_worker": 4}},
        [],
        [],
    ),
    "spawn_all_gpus.py": (
        {
            "name": "spawn-all-gpus",
            "script": "spawn_all_gpus.py",
            "resources": {"workers": 1, "gpus_per_worker": 1},
        },
        ["nprocs is torch.cuda.device_count()"],
        [],
    ),
    "pytorchjob.yaml": (
        {
            "name": "pytorch-dist-resnet",
            "script": "train.py",
            "args": ["--epochs", "5", "--backend", "nccl"],
            "resources": {
                "nodes": 4,
                "gpus_per_node": 1,
                "cpus_per_worker": 8,
                "memory_per_worker": "32Gi",
            },
            "env": {"NCCL_DEBUG": "INFO"},
            "image": "registry.example.org/team/resnet:1.2",
            "kubernetes": {
                "namespace": "kubeflow",
                "queue": {"name": "gpus"},
                "ttl": "1h",
                "deadline": "1d",
                "node_selector": {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "pull_policy": "Always",
                "secrets": ["wandb", "s3"],
                "volumes": [
                    {"mount": "/mnt/clustertrain", "claim": "clustertrain"},
                    {"mount": "/mnt/data", "claim": "datasets", "read_only": True},
                ],
                "code_in_image": "/workspace/app",
            },
        },
        [
            "GITHUB_TOKEN=…: a secret",
            "rdma/hca: `kubernetes.worker_resources`",
            "volume cache: `kubernetes.volumes`",
            "sidecar.istio.io/inject: clustertrain has no key",
            "Worker.template: all workers are the same",
            "POD: write its value",
            "storage: it is on the default claim",
        ],
        ["volume shm: each pod has its own /dev/shm", "cleanPodPolicy"],
    ),
    "pytorchjob_elastic.yaml": (
        {
            "name": "elastic-example",
            "script": "train.py",
            "args": ["--epochs=10", "--batch-size=32"],
            "resources": {
                "nodes": [1, 3],
                "gpus_per_node": 4,
                "cpus_per_worker": 0.5,
                "memory_per_worker": "4Gi",
            },
            "image": "registry.example.org/elastic:0.1",
            "failures": {"retries": 100},
            "kubernetes": {"code_in_image": "/app"},
        },
        ["pip install timm: a pod has no setup"],
        ["rdzvBackend: clustertrain finds", "--rdzv_backend=c10d"],
    ),
    "trainjob.yaml": (
        {
            "name": "mnist",
            "script": "train.py",
            "args": ["--epochs", "3"],
            "resources": {
                "nodes": 2,
                "gpus_per_node": 2,
                "cpus_per_worker": 6,
                "memory_per_worker": "32Gi",
            },
            "env": {"LOG_LEVEL": "debug"},
            "image": "registry.example.org/mnist:2",
            "kubernetes": {"namespace": "team-a"},
        },
        ["spec.initializer: `data` stages", "train.py: the code is sent from here"],
        ["spec.runtimeRef"],
    ),
    "rayjob.yaml": (
        {
            "name": "ray-train",
            "function": "ray_train:train_func",
            "args": {"lr": 0.001, "epochs": 10},
            "resources": {
                "nodes": 2,
                "gpus_per_node": 4,
                "cpus_per_worker": 4,
                "memory_per_worker": "16Gi",
            },
            "image": "rayproject/ray:2.46.0-gpu",
            "kubernetes": {"ttl": "1m"},
        },
        ["clustertrain.session in place of ray.train", "run_config", "spec.runtimeEnvYAML"],
        ["spec.rayClusterSpec.headGroupSpec"],
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_file_becomes_a_job_file(name, here):
    job, lost, done = JOBS[name]
    found, comments = imported(name)
    assert found == job
    for text in lost:
        assert text in comments["no counterpart"]
    for text in done:
        assert text in comments["done"]
    if name.endswith(".sbatch"):
        checked = clustertrain("check", "--to", "slurm", "--no-code")
        assert checked.exit_code == 0, checked.output
    if name.endswith(".yaml"):
        rendered = clustertrain("render", "--to", "kubernetes")
        assert rendered.exit_code == 0, rendered.output
    text = Path("job.yaml").read_text()
    assert not [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("name", [name for name in JOBS if name.endswith(".sbatch")])
def test_every_line_of_a_script_has_a_comment(name, here):
    imported(name)
    commented = {int(number) for number in re.findall(r"(?m)^#   line (\d+):", Path("job.yaml").read_text())}
    joined = re.sub(
        r"\\\n|(?<=\()\n(?s:.*?)\)", lambda part: "\0" * part[0].count("\n"), Path(name).read_text()
    )
    logical = joined.split("\n")
    number = 1
    for line in logical:
        has_content = line.startswith("#SBATCH") or (line.strip() and not line.lstrip().startswith("#"))
        if has_content:
            assert number in commented, line
        number += 1 + line.count("\0")


COMMANDS = {
    "torchrun --nproc-per-node 8 train.py --lr 0.1": {
        "args": ["--lr", "0.1"],
        "resources": {"workers": 8, "gpus_per_worker": 1},
    },
    "torchrun --nproc-per-node=gpu train.py": {"resources": {"workers": 1, "gpus_per_worker": 1}},
    "torchrun --nnodes 1:4 --nproc_per_node=8 --max-restarts=1 -m package.train": {
        "resources": {"nodes": [1, 4], "gpus_per_node": 8},
        "failures": {"retries": 1},
    },
    "python -m torch.distributed.run --nproc-per-node 2 train.py --backend gloo": {
        "args": ["--backend", "gloo"],
        "resources": {"workers": 2},
    },
    "torchrun --nproc-per-node 2 train.py --device cpu --dist-backend=gloo": {
        "args": ["--device", "cpu", "--dist-backend=gloo"],
        "resources": {"workers": 2},
    },
    "OMP_NUM_THREADS=4 /envs/a/bin/torchrun --nproc-per-node 2 train.py": {
        "resources": {"workers": 2, "gpus_per_worker": 1},
        "env": {"OMP_NUM_THREADS": "4"},
        "interpreter": "/envs/a/bin/python",
    },
    "accelerate launch --num_processes 4 --multi_gpu --mixed_precision fp16 train.py": {
        "resources": {"workers": 4, "gpus_per_worker": 1},
        "env": {"ACCELERATE_MIXED_PRECISION": "fp16"},
    },
    "accelerate launch --config_file cluster.yaml train.py": {
        "resources": {"workers": 8, "gpus_per_worker": 1},
        "env": {"ACCELERATE_MIXED_PRECISION": "bf16"},
    },
    "deepspeed --num_nodes 2 --num_gpus 4 train.py": {"resources": {"nodes": 2, "gpus_per_node": 4}},
    "horovodrun --min-np 2 --max-np 8 --host-discovery-script d.sh python train.py": {
        "resources": {"workers": [2, 8], "gpus_per_worker": 1},
    },
    "srun -N 2 --ntasks-per-node=4 --gpus-per-task=1 -c 8 python train.py": {
        "resources": {"nodes": 2, "gpus_per_node": 4, "cpus_per_worker": 8},
    },
    "bash -c 'cd sub && torchrun train.py'": {
        "resources": {"workers": 1, "gpus_per_worker": 1},
        "code": "sub",
    },
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_becomes_a_job_file(command, here):
    (here / "sub").mkdir()
    (here / "sub" / "train.py").touch()
    entry = {"module": "package.train"} if "-m package" in command else {"script": "train.py"}
    name = {"name": "train"} if "script" in entry else {"name": "package-train"}
    assert imported("--", *shlex.split(command))[0] == name | entry | COMMANDS[command]


def test_the_file_of_accelerate_config_counts(here):
    (here / "hf" / "accelerate").mkdir(parents=True)
    lines = ["distributed_type: FSDP", "num_processes: 8", "mixed_precision: bf16", "gpu_ids: all"]
    (here / "hf/accelerate/default_config.yaml").write_text("\n".join([*lines, "tpu_use_sudo: false"]))
    job, comments = imported("--", "accelerate", "launch", "--num_processes", "4", "train.py")
    assert job["resources"] == {"workers": 4, "gpus_per_worker": 1}
    assert job["env"] == {"ACCELERATE_MIXED_PRECISION": "bf16"}
    assert comments["no counterpart"].count("\n") == 0
    assert "distributed_type: FSDP: a plug-in of Accelerate" in comments["no counterpart"]


def test_short_options_may_stand_together_or_before_their_value(here):
    lines = ["#!/bin/bash", "#SBATCH -sv", "#SBATCH -xnode3", "srun -lu python -uBm package.train", ""]
    (here / "a.sbatch").write_text("\n".join(lines))
    job, comments = imported("a.sbatch")
    assert job["module"] == "package.train"
    assert job["slurm"] == {"options": ["--oversubscribe", "--exclude=node3"]}
    assert "-B: an option of Python" in comments["no counterpart"]


def test_paths_are_relative_to_the_job_file(here):
    (here / "jobs").mkdir()
    done = clustertrain("import", "-o", "jobs/a.yaml", "--", "torchrun", "train.py")
    assert done.exit_code == 0, done.output
    assert yaml.safe_load(Path("jobs/a.yaml").read_text())["code"] == ".."
    checked = clustertrain("check", "--no-code", "jobs/a.yaml")
    assert checked.exit_code == 0, checked.output
    (here / "work").mkdir()
    assert imported("--", "torchrun", f"{here}/work/../train.py")[0].get("code") is None


def test_a_script_elsewhere_is_the_folder_of_the_code(here, tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").touch()
    job, _ = imported("--", "torchrun", str(folder / "train.py"))
    assert (job["code"], job["script"]) == (str(folder), "train.py")


@pytest.mark.parametrize(
    "line",
    [
        'cd "$(dirname "$0")"',
        "cd `dirname $0`/",
        'HERE=$(cd -- "$(dirname "${BASH_SOURCE[0]}")" > /dev/null 2>&1 && pwd -P)\ncd $HERE',
        'cd "$(dirname "$(readlink -f "$0")")/../work"',
        "cd $SLURM_SUBMIT_DIR/work",
        "cd elsewhere && cd $SLURM_SUBMIT_DIR\ncd work/other\ncd ..",
    ],
)
def test_the_folder_of_the_script_is_known(here, line):
    (here / "work").mkdir()
    (here / "work" / "train.py").touch()
    (here / "work" / "a.sh").write_text(f"{line}\ntorchrun train.py\ncd results\n")
    assert imported("work/a.sh")[0]["code"] == "work"


@pytest.mark.parametrize(
    ("line", "setup"),
    [
        ("clear; module load cuda; srun python train.py; rm -rf out", ["module load cuda"]),
        (
            ". ~/.bashrc && export A=1 && conda activate x && torchrun train.py",
            [". ~/.bashrc", "conda activate x"],
        ),
        ('cd . && curl -L "http://a?b=1&c=2" 2>/dev/null | tar xz # data', None),
        ("echo 'lr: 1' > conf.yaml", None),
        ("echo lr: 1 | tee conf.yaml", None),
        ("./monitor & echo started >&2", ["./monitor &"]),
        ("mkdir a\\ ; torchrun train.py \\ ", ["mkdir a\\ "]),
        ("set -eu; set -a\n. a.env\nset +a\nset -a", ["set -a", ". a.env", "set +a", "set -a"]),
    ],
)
def test_what_only_a_shell_can_run_before_the_training_is_setup(here, line, setup):
    (here / "a.sh").write_text(f"{line}\n" + ("" if "train.py" in line else "torchrun train.py\n"))
    expected = [line.removeprefix("cd . && ").removesuffix(" # data")] if setup is None else setup
    assert imported("a.sh")[0]["slurm"]["setup"] == expected


def test_options_in_a_variable_may_have_a_command_and_ranks_are_no_values_to_write(here):
    lines = [
        'ARGS="--nproc-per-node 4 --rdzv-endpoint=$(hostname):29400"',
        "torchrun $ARGS train.py $SLURM_PROCID",
    ]
    (here / "a.sh").write_text("\n".join(lines))
    job, comments = imported("a.sh")
    assert job["resources"] == {"workers": 4, "gpus_per_worker": 1}
    assert "${SLURM_PROCID}: each start or process has another" in comments["no counterpart"]
    assert "CHECKPOINT_DIR" not in comments["no counterpart"]


def test_a_missing_script_is_named(here):
    job, comments = imported("--", "torchrun", "other.py", check=False)
    assert job["script"] == "other.py"
    assert "other.py: the script is not here" in comments["no counterpart"]


def test_a_rayjob_without_its_program_guesses_the_function(here):
    Path("ray_train.py").unlink()
    text = Path("rayjob.yaml").read_text().replace("ray_train.py", "ray_train.py --lr 0.1")
    Path("ray.yaml").write_text(text)
    job, comments = imported("ray.yaml", check=False)
    assert job["function"] == "ray_train:train_func"
    assert "its name is a guess" in comments["no counterpart"]
    assert "--lr 0.1: the program reads these" in comments["no counterpart"]


def test_torchrun_in_a_trainjob_starts_a_process_for_each_gpu(here):
    text = Path("trainjob.yaml").read_text().replace("    numProcPerNode: auto\n", "")
    Path("auto.yaml").write_text(text)
    assert imported("auto.yaml")[0]["resources"]["gpus_per_node"] == 2


def test_it_prints_what_has_no_counterpart_and_the_next_command(here):
    done = clustertrain("import", "-o", "a b.yaml", "horovod.sbatch")
    assert "no counterpart: line 8: horovodrun" in done.output
    wrote, following = done.output.splitlines()[-2:]
    assert wrote == "wrote a b.yaml"
    assert following.endswith("clustertrain check 'a b.yaml'")


def test_nothing_is_overwritten(here):
    Path("job.yaml").write_text("mine")
    done = clustertrain("import", "spawn.py")
    assert done.exit_code == 2
    assert "exists already" in done.output
    assert Path("job.yaml").read_text() == "mine"


def test_no_secret_is_copied(here):
    secrets = ["geheim1", "geheim2", "geheim3", "geheim4", "hf_abcdefghijklmnop", "geheim6", "geheim7"]
    lines = [
        f"export HF_TOKEN={secrets[0]}",
        f"export API_KEY={secrets[1]} OUT=$(date)",
        f"DB_PASSWORD={secrets[2]} ./migrate.sh",
        f"wandb login {secrets[3]}",
        f"curl https://example.org?x={secrets[4]}",
        f"AWS_SECRET_ACCESS_KEY={secrets[5]} torchrun train.py --hub_token {secrets[6]} --lr 0.1",
    ]
    Path("a.sh").write_text("\n".join(lines))
    done = clustertrain("import", "a.sh")
    assert done.exit_code == 0, done.output
    text = Path("job.yaml").read_text()
    assert not [secret for secret in secrets if secret in text + done.output]
    for number in range(1, 7):
        assert re.search(rf"(?m)^#   line {number}: .*a secret is not copied", text)
    assert yaml.safe_load(text)["args"] == ["--lr", "0.1"]
