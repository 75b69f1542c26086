"""Why a run failed, or hangs: the first cause over all ranks and nodes, and what to change.

catalogue.yaml  the failures that are known: how a line of a log shows each, its cause, what to change
catalogue.py    reads it
evidence.py     the texts that may show the cause: records, events and the ends of the logs of a start
first_cause.py  which of their lines is the first cause, and which only follow from it
stacks.py       the stacks of all ranks of a run, requested now and grouped
explanation.py  the answer for a run, as lines or as JSON
"""
