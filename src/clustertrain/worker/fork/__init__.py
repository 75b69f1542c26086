"""The fork server of a node (driver/fork/server.py), as its clients see it.

client.py             asks for a worker process; Ray runs it in place of its setup_worker.py
preload.py            tells the fork server what a rank has imported, for its next start
"""
