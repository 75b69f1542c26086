"""This machine, with Ray on it, or the Ray cluster that RAY_ADDRESS names.

launcher.py  the launcher
run.py       claim an attempt, start the driver, show what happens
"""
