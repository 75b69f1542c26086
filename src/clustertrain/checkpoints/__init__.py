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

Reasons:

- Ray's checkpoints and its `report` are not used. Ray rewrites its snapshot file in place, and a torn
  snapshot makes every restart fail. Its commit lags behind `report`: at a kill, two of two finished
  checkpoints were lost (observed with Ray 2.60).
- The driver starts the worker group again in the same attempt, so the fence is (attempt, restart), not
  only the attempt. The list of checkpoints to resume from is fixed when a restart is claimed; later
  checkpoints of a stale writer are not in it.
- A save blocks training only for a copy to host memory; benchmarks/saving.py compares it with
  `torch.save`.
- A bit-identical resume with three or more ranks needs the final DDP buckets before the state is loaded:
  two discarded passes.
- Between two saves the same code writes the same checkpoints to the memory of the nodes, every few steps.
  So a start after the death of a rank has one loop, one fence and one verification for both shelves. The
  ranks agree on the steps in a collective, because a checkpoint that one node lacks is of no use. A copy
  at a neighbour node would serve only where a job outlives a node: on SLURM it does not.
"""
