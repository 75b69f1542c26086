"""Checkpoints of a run: a folder of files each, complete or not there. docs/checkpoints.md has the format.

manifest.py  names, MANIFEST.json, and the folder that holds the checkpoints of a run
read.py      verify one, choose the newest that verifies, fetch it
save.py      copy the state to host memory, then write it in the background; load it
write.py     commit a checkpoint, and remove those that are no longer kept
export.py    the weights of one as safetensors
"""
