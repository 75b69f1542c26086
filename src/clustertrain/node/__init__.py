"""The machine that this process runs on: addresses, ports, limits, processes, signals."""
