"""The training loop, in pure torch: it runs under Ray Train, under torchrun and in one plain process.

settings.py      what a job says about training
task.py          the parts a user writes: model, data, loss, metrics
loop.py          train(): the loop, top to bottom; Run, what it asks of its launcher
sampling.py      which samples a rank takes at which step
loading.py       from sample ids to a batch on the device
building.py      the model on its device, in DDP, and its buckets settled
optimization.py  learning rate, warm-up, clipping, loss scaling, the step
evaluation.py    one pass over the evaluation data, each sample counted once
metrics.py       sums that are exact over ranks, and the loss that is not finite
distributed.py   ranks, and what they agree on
precision.py     fp32, bf16, fp16
rng.py           random states: seeded, saved, restored
"""
