"""Writes a safetensors file into a stream, tensor by tensor; the library needs all its bytes, or a path.

https://huggingface.co/docs/safetensors/index#format: the length of the header, the header as JSON, the bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import torch

from clustertrain.errors import JobError

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_safetensors(file: Any, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors of the CPU to an open file, in their order.

    Raises:
        JobError: a tensor has a dtype that the format does not know.
        OSError, StorageError: of the stream.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise JobError(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}: no safetensors file can store this.\n"
                f"Use one of {', '.join(str(d).removeprefix('torch.') for d in _DTYPES)}."
            )
        start, end = end, end + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8 bytes
    file.write(struct.pack("<Q", len(text)) + text)
    for tensor in tensors.values():
        if tensor.numel():
            raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            file.write(memoryview(raw))  # type: ignore[arg-type]  # numpy declares no buffer
