"""The version of clustertrain, and of the Ray that it is built with."""

__version__ = "0.1.0"
RAY_VERSION = "2.60.0"
"""The Ray that requirements/constraints.txt pins: in images, in manifests and in the client."""
