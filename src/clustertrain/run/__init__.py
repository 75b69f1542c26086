"""The files of a run: every path, who writes and who reads each, and what they say together."""
