"""The cause of a failed start of the worker group.

failures.py      which rank failed first, and the record of its failure
rank_failure.py  the failure of one rank: its cause, and whether another start would fail again
ranks.py         what the ranks and their nodes answer, and the end of a rank's log
diagnosis.py     which limit ended a worker, with its number, and what is known of its GPU
gpu_facts.py     which GPU it was, and the other processes on it
signature.py     whether an error equals an earlier one
"""
