"""One start of the worker group.

start.py    the steps before its training, with Ray and without; its failure
resume.py   the checkpoint from which a start resumes: in the storage, or in the memory of the nodes
forked.py   a group without Ray: its ranks are forks on this machine
"""
