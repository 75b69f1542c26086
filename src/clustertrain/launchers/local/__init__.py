"""Runs on this machine, with a Ray that the driver starts or with the Ray cluster of RAY_ADDRESS.

plugin.py     registers the launcher
scheduler.py  submits a run to the background, and finds its process
start.py      the program of a submitted run
turn.py       waits until the runs before it in a sweep have ended
ray.py        the driver's connection to Ray: its own on this machine, or the one of RAY_ADDRESS
run.py        claims an attempt, starts the driver, shows its progress
"""
