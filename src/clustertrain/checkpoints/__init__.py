"""Checkpoints of a run: a folder each, written atomically. docs/guides/checkpoints.md has the format.

manifest.py   names, MANIFEST.json, and the folder of all checkpoints of a run
read.py       verifies checkpoints, selects the newest valid one, fetches it
shards.py     saves and loads a model that is divided among ranks
group.py      the ranks that write one checkpoint together
safetensors_file.py  writes a safetensors file into a stream
save.py       copies the state to host memory, writes it in the background; loads it
pinned.py     pinned host memory for the copy, without rounding up
write.py      commits a checkpoint, and removes those that are no longer kept
retention.py  which checkpoints are kept, and which one is the best
export.py     exports the weights of one as safetensors
digests.py    the tensors and numbers of all checkpoints as short texts, to compare runs
transfer.py   sends the model of one through a pipe
"""
