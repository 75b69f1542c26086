"""Worker processes of Ray as forks of a process that has imported everything: a start costs no import.

starter.py            starts the fork server of a node, together with Ray
server.py             the fork server: imports, and forks
client.py             asks the fork server; as a program, it replaces Ray's setup_worker.py
preload.py            tells the fork server what a rank has imported, for its next start
"""
