"""The training loop, in pure torch: it runs under Ray Train, under torchrun and in a single process.

settings.py      the settings of the loop
task.py          the parts a user writes: model, data, loss, metrics
loop.py          train(): the loop, top to bottom
run.py           the loop's interface to its launcher
rehearsal.py     one batch of training and evaluation in one process, before a cluster is started
refusals.py      what the user's code raises before the first step, with the line of the user's file
user_frames.py   which frames of a traceback are the user's
sampling.py      which samples a rank takes at which step
shard_order.py   which samples of shards a rank takes, in which order
shards.py        Shards: a data set of WebDataset shards
tar_shard.py     one shard: its samples, and what shows that it is torn
streaming.py     an IterableDataset: read by every rank, split among them
feeding.py       how each kind of data is read: map-style, shards, stream
loading.py       from sample ids to a batch on the device
loader_processes.py  how many loader processes a rank starts by itself
kernels.py       TF32 and cuDNN's algorithms on GPUs
building.py      the model on its device and in DDP or FSDP, with its final gradient buckets
sharding.py      FSDP: the model divided among the ranks
file_memory.py   a model larger than the memory is built in files
initializing.py  initial weights by the task, block by block
float8.py        large matrix products in 8 bits
divided.py       tensors that are divided among ranks
blocks.py        the blocks of a model that FSDP gathers together, and what FSDP refuses
recomputing.py   activation checkpointing, by blocks or operations
block_calls.py   all ranks call the same blocks in the same order
restoring.py     the tensors of a checkpoint, divided as the model is
unused.py        parameters without a gradient, for which DDP would wait
compiling.py     torch.compile, and the compiler that it needs
normalizing.py   BatchNorm layers converted to another normalization
optimization.py  learning rate, warm-up, clipping, the step
evaluation.py    one pass over the evaluation data, each sample counted once
callbacks.py     calls of a task's callbacks
images.py        the images of a task, checked
saving.py        a save on all ranks: none of them waits longer than bytes are written
early_stop.py    counts the evaluations in a row without an improvement
metrics.py       the kinds of metrics, and how each is computed over all ranks
gathering.py     outputs and targets of all samples of an evaluation, from all ranks
meter.py         the running loss over all ranks; losses and weights that are not finite
not_finite.py    the first module whose output is not finite, and what helps
step_watch.py    what the curve shows of the steps: times, speed, memory; the other files of this kind:
step_times.py    the time of a step: waiting for data, computing, exchanging gradients
stragglers.py    names a rank that is much slower than the others
flops.py         floating-point operations of a step, and the share of a GPU's peak
profiling.py     a profile of a few steps, a file per rank
memory_snapshot.py  what a GPU's memory held when it was exhausted
distributed.py   ranks, collectives, and requests on which all ranks agree
precision.py     fp32, bf16, fp16 with its loss scaling
consistency.py   every rank has the same model: at the start, and at saves with its optimizer's state
rng.py           random states: seeding, saving, restoring
"""
