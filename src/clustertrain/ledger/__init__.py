"""The ledger of a run: every second of its ranks, booked once.

book.py    the categories, and what is booked
"""
