"""What a user's code makes and the loop only passes on: the types say what is meant, not what it is."""

from __future__ import annotations

from typing import Any, TypeAlias

Sample: TypeAlias = Any
"""An element of a data set."""
Batch: TypeAlias = Any
"""What `Task.collate` makes of samples; tensors in any nesting."""
Dataset: TypeAlias = Any
"""A map-style or an iterable data set."""
Outputs: TypeAlias = Any
"""The outputs of a model for a batch, or its targets; tensors in any nesting."""
State: TypeAlias = dict[str, Any]
"""The state of a training or of a part of it, as a checkpoint has it."""
