"""The ledger of a run: every second of its ranks, booked once.

book.py            the categories, and what is booked
of_run.py          the ledger of a run
attempt_files.py   what the files of an attempt say about its time
start.py           one start of the worker group, and its bookings
"""
