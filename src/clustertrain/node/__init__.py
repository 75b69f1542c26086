"""The machine and the environment of this process: what every other folder may use.

limits.py        its limits: memory, /dev/shm, open files
gpus.py          its GPUs and the processes on them, by NVML; how many a process may use
numa.py          the CPUs next to a GPU
memory_kill.py   whether the kernel killed a process for memory
network.py       the address by which other nodes reach it, and its interface
ports.py         a block of free ports for one job
processes.py     the identity of a process, to check later whether it still runs
signals.py       signals that request the end of a process: recorded, or blocked
user_folders.py  this user's home, cache and list of runs
installed.py     whether torch and Ray are installed, without importing them, and how to install them
interpreter.py   the Python of a script's own environment: `interpreter`
regular_file.py  opens regular files only, no pipes and devices
units.py         sizes and durations as people write them
variables.py     the names of the environment variables
version.py       the version of clustertrain, and of Ray
waiting.py       waits for a condition, with a deadline
ray_settings.py  Ray's settings wherever clustertrain starts it
"""
