"""The user's code: imported, created, its errors reported.

user_code.py          imports and checks the user's task or function, creates the task; errors name the line
user_error.py         an exception of the user's code, as it is sent to the driver
error_report.py       class, text, causes and user's frames of an exception, and the message made of them
printed_traceback.py  reads a report from a printed traceback: of a script, or of a loader process
"""
