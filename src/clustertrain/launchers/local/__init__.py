"""This machine, with Ray on it, or the Ray cluster that RAY_ADDRESS names.

launcher.py  the launcher
ray.py       how the driver reaches Ray: its own on this machine, or the one of RAY_ADDRESS
run.py       claim an attempt, start the driver, show what happens
"""
