"""An unchanged torchrun script as a process of its own.

script.py             starts the script, follows it, and reports its end
script_command.py     the command and the variables of that process
request_page.py       how the script knows of a request to stop without a signal
"""
