"""The loggers: where rank 0 writes the curve of a run for other programs, by `train.log`.

curve.py        all loggers of a job, each in a thread
background.py   the thread of one logger: its queue, its failures, its end
logger.py       the interface of a logger, and what identifies the curve
tensorboard.py  TensorBoard's files
mlflow.py       a run of MLflow
wandb.py        a run of Weights & Biases
ray_gauges.py   loss, throughput and goodput as metrics of Ray, whatever `train.log` says
"""
