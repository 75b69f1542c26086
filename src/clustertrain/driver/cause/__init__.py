"""The cause of a failed start of the worker group.

failures.py         which rank failed, and the cause
error_signature.py  whether an error is certain to occur again, is transient, or equals an earlier one
diagnosis.py        which limit ended a worker, with its number
gpu_diagnosis.py    what ended a worker on its GPU: another process, the hardware, memory of a library
"""
