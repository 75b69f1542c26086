"""The fork server of a node.

starter.py       starts it together with Ray
server.py        makes Ray's worker processes: forks of a process that has imported everything
forked_check.py  makes the process of the check in the same way
"""
