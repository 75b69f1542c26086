"""The training loop, in pure torch: it runs under Ray Train, under torchrun and in a single process.

settings.py        the settings of the loop
task.py            the parts a user writes: model, data, loss, metrics
values.py          the types of what a user's code makes: samples, batches, outputs, states
loop.py            train(): the loop, top to bottom
preparing.py       what the loop needs before its first step: model, data, optimizer, evaluation
training_state.py  what changes from step to step, as a checkpoint has it
rehearsal.py       one batch of training and evaluation in one process, before a cluster is started
sanity.py          what the ranks, and a rehearsal, try before the first step
task_state.py      the state of a task in a checkpoint, or a warning about modules that are in none
task_errors.py     what the user's code raises before the first step, with the line of the user's file
summed_loss.py     whether a task's loss is a sum over the batch
user_frames.py     which frames of a traceback are the user's
evaluation.py      one pass over the evaluation data, each sample counted once
metrics.py         the kinds of metrics, and how each is computed over all ranks
gathering.py       outputs and targets of all samples of an evaluation, from all ranks
nested_tensors.py  nested containers with tensors, each tensor replaced
memory_saves.py    after which steps the state is saved in the memory of the nodes
early_stop.py      counts the evaluations in a row without an improvement
images.py          the images of a task, checked
saving.py          a save on all ranks: none of them waits longer than bytes are written
ranks/             ranks, collectives, random states, and what all ranks must have in common
data/              from data sets to batches on the device
model/             the model in DDP or FSDP, compiled and initialized
step/              one step: precision, optimizer, losses that are not finite
measured/          what is measured of the steps: times, operations, memory, profiles
"""
