"""The fork server of a node.

starter.py  starts it
server.py   makes the processes of ranks: forks of one that has imported torch and, with Ray, Ray Train
"""
