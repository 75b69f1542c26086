"""The rank's process and its node: GPUs, CPUs, memory, data.

gpus.py           the GPUs of a rank, and whether torch can use them
gpu_affinity.py   a worker on the CPUs next to its GPUs; expandable segments of GPU memory
gc_tuning.py      no search for unreachable objects while a process starts
heap.py           memory that a step has freed stays for the next one
local_data.py     the data sets of a job on this machine
raylet_watch.py   ends a rank with the raylet that started it
storage_probe.py  tests that every node can write the storage and read the files of the others
"""
