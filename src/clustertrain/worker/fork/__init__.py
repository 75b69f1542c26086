"""The fork server of a node (driver/fork/server.py), as its clients see it.

client.py  asks for a worker process; Ray runs it in place of its setup_worker.py
ends.py    how its forks have ended, which it notes for the driver
"""
