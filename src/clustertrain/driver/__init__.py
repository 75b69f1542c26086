"""The driver: one process per attempt that hands the job to Ray Train and writes how it ended.

__main__.py      the program: job -> TorchTrainer.fit -> result.json
ray_cluster.py   what the driver needs of a Ray cluster; launchers/*/ray.py have the classes
trainer.py       Ray Train's TorchTrainer with its controller in the driver
backend.py       what happens before each start of the worker group
failures.py      which rank failed, and of what
diagnosis.py     which limit ended a worker, with its number
retry_policy.py  whether another start of the worker group can help
outcome.py       the result of the attempt, from what rank 0 reported or Ray raised
"""
