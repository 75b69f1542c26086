"""A torchrun script with a progress bar. At SIGTERM rank 0 saves and goes on, until it loses rank 1."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

AFTER_SIGNAL_S = 2.0
signalled_at = []


def save(number, frame):
    Path(os.environ["CLUSTERTRAIN_CHECKPOINT_DIR"], "model.pt").touch()
    print("\nsaved", flush=True)


def end_soon(number, frame):
    signalled_at.append(time.monotonic())


def main():
    dist.init_process_group("gloo")
    signal.signal(signal.SIGTERM, save if dist.get_rank() == 0 else end_soon)
    print(f"rank {dist.get_rank()} begins")
    for step in range(1, 601):
        dist.all_reduce(torch.ones(1))
        sys.stderr.write(f"\r{step}/600")
        time.sleep(0.1)
        if signalled_at and time.monotonic() > signalled_at[0] + AFTER_SIGNAL_S:
            os._exit(0)


if __name__ == "__main__":
    main()
