"""The user's view of runs: state, logs, progress.

run_state.py    the standing of a run: state, cause, text
status.py       the standing of a run by its files
status_json.py  the output of `status --json`, and its parser
tables.py       the tables of `status` and the end of a run, and hints for the next command
run_table.py    the table of `ls`, as lines or as JSON
columns.py      the columns of `ls --args` and `ls --metric`
checkpoints.py  the checkpoints of a run, and the one that a user names
as_json.py      the output of every `--json`
logs.py         `clustertrain logs`
event_lines.py  the line of text for each event
screen.py       the progress of a run: moving lines on a terminal, lines elsewhere
display.py      what a supervisor shows: events, and the output of rank 0
rank_output.py  what the user's code prints on rank 0, from its log as it grows
terminal_text.py  the lines of a program's output, without what changes a terminal
explain/        the one catalogue of errors; why a run failed or hangs: the first cause over all ranks
ledger/         the seconds of a run's ranks, each booked in one category
report/         a run, or several, as an HTML page
wait.py         `submit --wait`: prints each change of state, until the run has ended
"""
