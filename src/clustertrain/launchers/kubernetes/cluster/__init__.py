"""Asks the cluster before and while a run is applied.

kubectl.py   runs kubectl with the job's context and namespace
dry_run.py   the API server checks every object before any is applied
"""
