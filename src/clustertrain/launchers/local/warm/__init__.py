"""A Ray that `clustertrain up` keeps ready on this machine for the next run of its user.

    clustertrain up ──starts──▶ keeper ──▶ guardian ──▶ spare driver ──▶ Ray, fork server
    clustertrain run ─────asks────┘

The run takes over the guardian, so that it supervises its driver as always, and shares nothing with another
run. The keeper starts the next spare driver when the run is over.

messages.py  the keeper's socket, and what is said on it
start.py     what a process has from its start, by which a run knows whether the spare driver fits
keeper.py    the program that keeps them
commands.py  the keeper's other side: `up`, `down`, and the run that takes the spare driver
"""
