"""Runs as their users see them: the state, the logs, and the progress.

standing.py     where a run stands: a state, its cause, a text
status.py       the standing of a run by its files
status_json.py  `status --json`, and how it is read again
tables.py       the tables of `ls`, `status` and the end of a run, and what to type next
logs.py         `clustertrain logs`
event_lines.py  a line of text for each event
screen.py       the progress of a run: a bar on a terminal, lines elsewhere
wait.py         `submit --wait`: each change of state, until the run has ended
"""
