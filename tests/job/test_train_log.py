"""`train.log`: names, what is refused, what a logger is given, and the servers of a job."""

import pytest

from clustertrain.errors import JobError
from clustertrain.job.identity import hyperparameters
from clustertrain.job.loggers import server_urls
from clustertrain.job.model import Job


def train(**sections):
    return {"epochs": 2, "batch_size": 8, **sections}


def test_another_name_is_refused(job):
    with pytest.raises(JobError, match=r"must be 'tensorboard', 'mlflow' or 'wandb'\ndid you mean 'wandb'"):
        job(train=train(log="wandbs"))


def test_no_secret_is_a_hyperparameter(job):
    secret = "s3cr3t"
    args = {
        "hf_token": secret,
        "login": {"password": secret, "user": "me"},
        "servers": [{"api_key": secret}, f"https://me:{secret}@example.org/x"],
        "source": f"https://example.org/x?sig={secret}",
        "pad_token": "<pad>",
        "max_tokens": 4,
    }
    logged = hyperparameters(job(args=args))
    assert secret not in str(logged)
    assert logged["args.hf_token"] == logged["args.login.password"] == logged["args.source"] == "***"
    assert logged["args.servers"] == '[{"api_key":"***"},"***"]'
    others = [logged[f"args.{name}"] for name in ("login.user", "pad_token", "max_tokens")]
    assert others == ["me", "<pad>", 4]


def test_the_hyperparameters_of_a_script_are_the_options_of_its_command_line():
    args = "run --lr 1e-3 --amp -v --seed=-1 --tag 1_0 --hf_token=s3cr3t --name 007"
    script = Job(name="a", script="train.py", args=args.split())
    found = {"lr": 0.001, "amp": "true", "seed": -1, "tag": "1_0", "hf_token": "***", "name": "007"}
    assert hyperparameters(script) == {f"args.{name}": value for name, value in found.items()}


@pytest.mark.parametrize(
    ("log", "env", "urls"),
    [
        ("wandb", {}, ["https://api.wandb.ai"]),
        ("wandb", {"WANDB_MODE": "offline"}, []),
        ("wandb", {"WANDB_BASE_URL": "http://wandb:8080"}, ["http://wandb:8080"]),
        ("mlflow", {"MLFLOW_TRACKING_URI": "/shared/mlruns"}, []),
        ("mlflow", {"MLFLOW_TRACKING_URI": "http://mlflow:5000/"}, ["http://mlflow:5000/"]),
        ("mlflow", {"MLFLOW_TRACKING_URI": "http://mlflow:x"}, []),
    ],
)
def test_the_servers_that_a_job_shows(job, log, env, urls):
    made = job(train=train(log=log), env=env)
    assert server_urls(made.loggers, made.env) == urls
