"""Logs, and stops when it is asked, with clustertrain.session; resumes from its own file."""

import os
import signal
import time

import torch
import torch.distributed as dist

from clustertrain import session

STEPS, KILLED_AFTER = 40, 7

dist.init_process_group("gloo")
rank = dist.get_rank()
last = session.checkpoint_dir / "last.txt"
start = int(last.read_text()) if last.exists() else 0
attempt, restart = (os.environ.get(f"CLUSTERTRAIN_{name}") for name in ("ATTEMPT", "RESTART"))
print(f"data {sorted(session.data)}, after {start}", flush=True)
for step in range(start + 1, STEPS + 1):
    time.sleep(0.1 if attempt == "1" else 0.01)
    loss = torch.tensor(float(rank + 1) / step)
    session.log(step=step, loss=loss, total_steps=STEPS)
    if (attempt, restart) == ("1", "0") and step == KILLED_AFTER and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if step % 5 == 0:
        session.log(step=step, kind="eval", accuracy=step / 100)
        if rank == 0:
            last.write_text(str(step))
    if session.stop_requested():
        if rank == 0:
            last.write_text(str(step))
        time.sleep(2)  # the kit says what it waits for, as for a script with a long save
        print(f"stops after {step}", flush=True)
        break
else:
    print(f"ended after {step}", flush=True)
dist.destroy_process_group()  # without it a process may abort at its end, in gloo's thread
