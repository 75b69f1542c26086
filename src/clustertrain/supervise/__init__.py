"""Processes of a run that leave nothing behind, whichever of them is killed.

guardian.py        the parent of a driver or of Ray: ends every process below it
process.py         starts a command under a guardian
private_folder.py  the folder of one start on one node
orphans.py         ends the processes that a killed start left on this machine
driver_process.py  the driver under a guardian, and its next start or its result if it wrote none
check_process.py   the check of a job's code below a guardian, with a deadline
supervisor.py      the loop beside a driver: shows events, and ends the run if its policy decides so
stop_on_signal.py  the first signal requests a save and a stop, the second ends the run
"""
