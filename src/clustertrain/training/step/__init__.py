"""One step: precision, optimizer, losses that are not finite.

optimization.py  learning rate, warm-up, clipping, the step
counted.py       losses that are sums, with counts: their mean over ranks and passes
precision.py     fp32, bf16, fp16 with its loss scaling
schedule.py      the learning rates of a whole run, for its log
kernels.py       TF32 and cuDNN's algorithms on GPUs
running_loss.py  the running loss over all ranks; losses and weights that are not finite
not_finite.py    the first module whose output is not finite
"""
