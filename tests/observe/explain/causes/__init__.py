"""Causes failures for real: `python tests/observe/explain/causes NAME` in an empty folder."""
