"""Parts of the section `kubernetes` of a job file.

pod_sections.py   pods, volumes, outgoing traffic
patch_section.py  the patches
devices.py        devices that a cluster names itself
"""
