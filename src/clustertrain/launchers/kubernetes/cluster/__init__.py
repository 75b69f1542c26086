"""Asks the cluster before and while a run is applied.

kubectl.py   runs kubectl with the job's context and namespace
"""
