"""A small GPT that predicts the next byte of a text, and how fast it is: tokens/s and MFU."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from clustertrain import Task

HELD_OUT = 128  # windows at the end of the text
VOCABULARY = 256  # a token is a byte


class LanguageModel(Task):
    """A sample is a window of `context` bytes; the loss is the mean over them, in nats per byte."""

    def __init__(
        self,
        *,
        lr: float,
        layers: int = 4,
        width: int = 128,
        heads: int = 4,
        context: int = 256,
        speed_every: int = 50,
        peak_tflops: float | None = None,
    ) -> None:
        self.lr, self.layers, self.width, self.heads, self.context = lr, layers, width, heads, context
        self.speed = Speed(every=speed_every, peak_flops=peak_tflops and peak_tflops * 1e12)

    def model(self):
        model = GPT(self.layers, self.width, self.heads, self.context)
        self.speed.flops_per_token = flops_per_token(model)
        model.head.register_forward_hook(self.speed.see_logits)
        return model

    def train_data(self, data):
        return windows(data["stories"] / "stories.txt", self.context, slice(None, -HELD_OUT))

    def eval_data(self, data):
        return windows(data["stories"] / "stories.txt", self.context, slice(-HELD_OUT, None))

    def loss(self, model, batch):
        tokens, following = batch
        self.speed.add(tokens)
        return functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten().long())

    def optimizer(self, model):
        decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
        others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=self.lr, betas=(0.9, 0.95))

    def scheduler(self, optimizer, total_steps):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps, eta_min=self.lr / 10)

    def on_step(self, step, metrics):
        self.speed.after_step(step)

    def on_eval(self, step, metrics):
        self.speed.start()  # the time of an evaluation does not count


def windows(path, context, part):
    """The text in windows that do not overlap: tokens and, one byte later, what follows each; uint8
    (windows, context).

    Raises:
        ValueError: the text is too short to hold out windows for the evaluation.
    """
    text = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    count = (len(text) - 1) // context
    if count <= HELD_OUT:
        raise ValueError(
            f"{path} has {len(text)} bytes: ({len(text)} - 1) / {context} = {count} windows, and {HELD_OUT} "
            "are held out for the evaluation. Use a longer text or a shorter context."
        )
    tokens, following = (text[i : i + count * context].view(count, context)[part] for i in (0, 1))
    return TensorDataset(tokens, following)


class GPT(nn.Module):
    """A decoder-only transformer, with normalization before each part of a block, as GPT-2 has it."""

    def __init__(self, layers, width, heads, context):
        super().__init__()
        self.context, self.width = context, width
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.apply(self._initialize)

    @staticmethod
    def _initialize(module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        """Tokens, integers (batch, context) -> logits (batch, context, 256)."""
        x = self.tokens(tokens.long()) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = self.qkv(self.norm_1(x)).view(shape).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_2(x))


def flops_per_token(model):
    """FLOP of a training step per token: 6 N + 12 × layers × width × context.

    N counts the weights of matrix multiplications: a forward pass has 2 FLOP for each, a backward pass 4. The
    second term is that of attention, as if no position were masked. Source: Chowdhery et al. 2022,
    arXiv:2204.02311, appendix B.
    """
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    return 6 * weights + 12 * len(model.blocks) * model.width * model.context


class Speed:
    """Tokens per second over all workers, and the model FLOPs utilization (MFU): the share of the peak.

    The peak FLOP/s of a worker is given, or measured by multiplying matrices in the training's number
    format.
    """

    def __init__(self, every, peak_flops):
        self.every, self.peak_flops, self.peak_source = every, peak_flops, "given"
        self.flops_per_token = 0
        self.format = torch.float32
        self.start()

    def start(self):
        self.steps = self.tokens = 0
        self.since_s = time.perf_counter()

    def add(self, tokens):
        """Count the tokens of a training batch; in an evaluation there are no gradients."""
        if torch.is_grad_enabled():
            self.device, self.tokens = tokens.device, self.tokens + tokens.numel()

    def see_logits(self, head, inputs, logits):
        """The number format of the matrix products: that of autocast with DDP, or FSDP's own."""
        self.format = logits.dtype

    def after_step(self, step):
        """Every rank calls it; rank 0 prints. A start is measured from its second step on, when the model is
        compiled."""
        if self.peak_flops is None:
            self.peak_flops, self.peak_source = matmul_flops(self.device, self.format), "measured"
            self.start()
            return
        self.steps += 1
        if self.steps == self.every:
            self.report(step)
            self.start()

    def report(self, step):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        tokens_per_s = ranks * self.tokens / (time.perf_counter() - self.since_s)
        mfu = tokens_per_s * self.flops_per_token / (ranks * self.peak_flops)
        if not dist.is_initialized() or dist.get_rank() == 0:
            peak = f"{self.peak_flops / 1e12:.3g} TFLOP/s ({str(self.format)[6:]}, {self.peak_source})"
            needed = f"{self.flops_per_token / 1e6:.2f} MFLOP"
            print(
                f"step {step}: {tokens_per_s:,.0f} tokens/s × {needed}, MFU {mfu:.1%} of {ranks} × {peak}",
                flush=True,
            )


def matmul_flops(device, number_format):
    """FLOP/s of the fastest of ten products of square matrices: 2 × size³ FLOP each."""
    size = 8192 if device.type == "cuda" else 1024
    own = torch.Generator(device).manual_seed(0)  # the training's generator draws the same after a resume
    a = torch.randn(size, size, device=device, generator=own).to(number_format)
    fastest_s = float("inf")
    for _ in range(10):
        since_s = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize()
        fastest_s = min(fastest_s, time.perf_counter() - since_s)
    return 2 * size**3 / fastest_s
