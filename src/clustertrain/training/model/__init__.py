"""The model in DDP or FSDP, compiled and initialized.

building.py           the model on its device and in DDP or FSDP
sharding.py           FSDP: the model divided among the ranks
blocks.py             the blocks of a model that FSDP gathers together
initializing.py       initial weights by the task, block by block
recomputing.py        activation checkpointing, by blocks or operations
restore_tensors.py    the tensors of a checkpoint, divided as the model is
compiling.py          torch.compile, and a note when a model has more shapes than it compiles
model_calls.py        a loss that does not call the model itself
unused_parameters.py  parameters without a gradient, for which DDP would wait
"""
