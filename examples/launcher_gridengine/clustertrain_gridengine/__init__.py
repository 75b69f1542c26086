"""Grid Engine as a launcher of clustertrain.

plugin.py     registers the launcher
section.py    the section `gridengine` of a job file
scheduler.py  plans, submits, observes and cancels jobs
queue.py      the states of jobs in qstat and qacct
"""
