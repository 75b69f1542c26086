"""A function that prints what its process has had since its start: variables, and libraries in its memory."""

import ctypes
import os
from pathlib import Path

from clustertrain import session


def train(config):
    s = session.current()
    at_start = dict(
        line.split("=", 1)
        for line in Path("/proc/self/environ").read_bytes().decode().split("\0")
        if "=" in line
    )
    for name in config["names"]:
        s.print(f"{name}: {at_start.get(name)!r} at the start, {os.environ.get(name)!r} now")
    s.print(f"preloaded: {config['preloaded'] in Path('/proc/self/maps').read_text()}")
    s.print(f"found by its name: {ctypes.CDLL(config['library']).answer()}")
