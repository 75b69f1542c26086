"""Ranks: collectives, random states, and what all ranks must have in common.

distributed.py  ranks, collectives, and requests on which all ranks agree
host.py         the loop's interface to the program that runs it
dtensors.py     tensors that are divided among ranks
rng.py          random states: seeding, saving, restoring
consistency.py  every rank has the same model: at the start, and at saves with its optimizer's state
"""
