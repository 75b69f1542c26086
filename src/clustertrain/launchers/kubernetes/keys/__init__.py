"""Parts of the section `kubernetes` of a job file.

pod_sections.py  pods, volumes, outgoing traffic
devices.py       devices that a cluster names itself
"""
