"""The programs of benchmarks/ import their modules from there; only these are imported here, because gpu.py
would hide tests/gpu, which is a folder without __init__.py."""

import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
for name in ("bench", "comparison", "peers", "scale", "scaling"):
    import_module(name)
del sys.path[0]
