"""The fork server of a node.

starter.py  starts it
server.py   makes Ray's worker processes: forks of a process that has imported everything
"""
