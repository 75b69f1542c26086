"""Checkpoints of a run: one folder of files each, written atomically. docs/checkpoints.md has the format.

manifest.py   names, MANIFEST.json, and the folder of all checkpoints of a run
read.py       verifies checkpoints, selects the newest valid one, fetches it
save.py       copies the state to host memory, writes it in the background; loads it
pinned.py     pinned host memory for the copy, without rounding up
write.py      commits a checkpoint, and removes those that are no longer kept
retention.py  which checkpoints are kept, and which one is the best
export.py     exports the weights of one as safetensors
transfer.py   sends the model of one through a pipe
"""
