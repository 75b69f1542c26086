"""The machine that this process runs on.

limits.py        what it allows: memory, /dev/shm, open files
network.py       which of its addresses the other nodes reach, and through which interface
ports.py         a block of free ports for one job
processes.py     the identity of a process, to check later whether it still runs
signals.py       signals that ask a process to end: handled in one place, or blocked
cache.py         the folder of what this user keeps here and can do without
installed.py     whether torch and Ray are installed, without importing them
ray_settings.py  Ray's settings wherever the kit starts it
"""
