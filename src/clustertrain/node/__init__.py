"""The machine that this process runs on: addresses, ports, GPUs, limits, processes, signals."""
