"""An unchanged torchrun script as a child process.

script.py          starts the script, follows it, and reports its end
script_command.py  the command and the variables of that process
group_watch.py     names a rank of a script that makes no process group while others wait
py_spy.py          the stacks of that process, where py-spy is installed
peer_errors.py     whether an exception only shows that another rank is gone
"""
