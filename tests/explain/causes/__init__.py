"""Causes failures for real: `python tests/explain/causes NAME` in an empty folder."""
