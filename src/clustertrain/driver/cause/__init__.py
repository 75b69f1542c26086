"""The cause of a failed start of the worker group.

failures.py   which rank failed, the cause, and whether another start would fail again
diagnosis.py  which limit ended a worker, with its number, and what is known of its GPU
gpu_facts.py  which GPU it was, and the other processes on it
signature.py  whether an error equals an earlier one
"""
