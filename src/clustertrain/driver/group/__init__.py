"""One start of the worker group.

start.py    the steps before its training, with Ray and without
forked.py   a group without Ray: its ranks are forks on this machine
"""
