"""How the model is divided, exchanged and compiled: parts of the section `train` of a job file.

`docs/job-file.md` is generated from the docstrings here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, StrictBool

from clustertrain.job.sections import Section
from clustertrain.job.values import Count, Positive, Text


class Fsdp(Section):
    """How FSDP divides the model, for `strategy: fsdp`."""

    blocks: tuple[Text, ...] = ()
    """The class names of the modules whose parameters are gathered together, such as `[TransformerLayer]`. By
    default the method `blocks` of the task, and without it the largest modules with at most an eighth of all
    parameters. The log lists the blocks and their sizes."""

    shard: Literal["full", "hybrid"] = "full"
    """`full` divides the model over all workers. `hybrid` divides it over the workers of each node, so that
    between nodes only gradients are exchanged: faster, if the model fits on one node."""

    reshard_after_forward: StrictBool = True
    """Free the whole parameters of a block after its forward pass, and gather them again for its backward
    pass; the last block keeps them. With `false` all blocks keep them: fewer transfers, more memory."""

    exchange_every_pass: StrictBool = True
    """With `accumulate`, exchange gradients in each backward pass. With `false` only in the last one of a
    step: fewer transfers, and each worker needs the memory for all gradients."""


class Ddp(Section):
    """How DDP exchanges gradients, for `strategy: ddp`. The defaults are torch's."""

    bucket_cap_mb: Positive = 25
    """Gradients are exchanged in buckets of this many MiB, while the backward pass continues."""

    static_graph: StrictBool = False
    """The model uses the same parameters in each step, and DDP may rely on that: it finds unused parameters
    once. Such a model may also use a parameter several times."""

    broadcast_buffers: StrictBool = True
    """Send rank 0's buffers, such as the running values of BatchNorm, to all workers before each forward
    pass. With `false` each worker has its own, and rank 0's are saved."""


class Compile(Section):
    """How torch.compile compiles the model."""

    dynamic: StrictBool = False
    """`false` compiles once for each shape of a batch, `true` for all shapes together: for batches of many
    lengths. With `true` a resumed run may differ in the last bits, because the first shape decides."""

    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "default"
    """As torch.compile's `mode`: `reduce-overhead` uses CUDA graphs, for steps of many small kernels."""

    recompile_limit: Count = 8
    """How many shapes are compiled. The model runs uncompiled with further ones, and the log says so."""


def _compile(value: object) -> object:
    if isinstance(value, bool):
        return {} if value else None
    if not isinstance(value, dict | Compile):
        raise ValueError("must be a valid boolean, or a mapping")
    return value


def _as_typed(compile_: Compile | None) -> bool | dict[str, Any]:
    return compile_ is not None if compile_ in (None, Compile()) else compile_.model_dump()


CompileOrBool = Annotated[
    Compile | None,
    BeforeValidator(_compile, json_schema_input_type=StrictBool | Compile),
    PlainSerializer(_as_typed),
    Field(json_schema_extra={"default": False}),
]
