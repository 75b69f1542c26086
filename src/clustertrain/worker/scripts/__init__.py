"""An unchanged torchrun script as a process of its own.

script.py             starts the script, follows it, and reports its end
script_command.py     the command and the variables of that process
forked_script.py      that process as a fork of the fork server, which has imported torch
request_page.py       how the script knows of a request to stop without a signal
main_program.py       a script or a module as the main program of a process that runs already
process_group_end.py  the end of a script that has used gloo
py_spy.py             the stacks of that process, where py-spy is installed
peer_errors.py        whether an exception only shows that another rank is gone
"""
