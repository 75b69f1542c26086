"""A forward and a backward pass of the job's model on a CPU, as it is and compiled, in fp32 and in bf16.

    python speed.py
    python speed.py --batch 16 --threads 2

Times are processor seconds of this process and of the compiler that it starts, because other programs change
them little: those of the first pass, which compiles, and of the fastest of the next five.
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
from language_model import LanguageModel

from clustertrain import load_job


def processor_s():
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def passes(step, count):
    """The processor seconds of each of `count` calls."""
    found = []
    for _ in range(count):
        before_s = processor_s()
        step()
        found.append(processor_s() - before_s)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, default=8, help="windows in a pass")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    task = LanguageModel(**load_job(Path(__file__).with_name("job.yaml")).args)
    tokens = torch.randint(0, 256, (args.batch, task.context))
    print("compile  precision  first pass  later pass  tokens/s")
    for is_compiled in (False, True):
        for name in ("fp32", "bf16"):
            torch.manual_seed(0)
            torch.compiler.reset()
            model = task.model()
            if is_compiled:
                model = torch.compile(model, dynamic=False)

            def step(model=model, is_bf16=name == "bf16"):
                with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
                    loss = task.loss(model, (tokens, tokens))
                loss.backward()

            first_s, *later_s = passes(step, 6)
            speed = tokens.numel() / min(later_s)
            times = f"{first_s:8.1f} s  {min(later_s):8.3f} s"
            text = f"{str(is_compiled).lower():7}  {name:9}  {times}  {speed:8,.0f}"
            print(text, flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # nothing is compiled before
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        main()
