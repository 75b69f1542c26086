"""The blocks of a model for FSDP, whose parameters are gathered together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from clustertrain.errors import JobError
from clustertrain.training.settings import TrainSettings
from clustertrain.training.task import Task

# The size rule: a module with more than an eighth of the parameters is divided into its children; what has
# less than a thousandth is not worth a collective of its own.
_MOST, _LEAST = 8, 1000
_LARGE = 100  # of an embedding or a head outside the named blocks
# Their forward() uses the weights of children without calling the children.
_WHOLE = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


@dataclass(frozen=True)
class Block:
    """A module below the model, by its name there."""

    name: str
    module: nn.Module
    elements: int  # of its parameters, including those of blocks inside it


def find_blocks(task: Task, model: nn.Module, settings: TrainSettings) -> list[Block]:
    """Return the blocks of a model, inner ones first.

    The job file names them by class; otherwise `Task.blocks` returns them, or the size rule finds them.

    Raises:
        JobError: the model has no such modules, or a parameter is inside one of them and outside it.
    """
    names = {id(module): name for name, module in model.named_modules()}
    found, source = named_modules(task, model, settings)
    if not source:
        found = [module for module in found if _tied(module, model) is None]
    for module in found:
        if tie := _tied(module, model):
            inside, outside = tie
            raise JobError(
                f"{source or 'the size rule'} makes {names[id(module)]} a block of FSDP, but its parameter "
                f"{inside} is the same as {outside}, which is outside the block.\n"
                "A shared parameter must be inside one block, or in none: only then it stays one parameter.\n"
                "Name other blocks in train.fsdp.blocks or Task.blocks(), or set train.strategy: ddp."
            )
    found += [each for each in _large_leaves(model, found) if _tied(each, model) is None]
    unique = {id(module): module for module in found if module is not model}
    blocks = [Block(names[i], module, _elements(module)) for i, module in unique.items()]
    return sorted(blocks, key=lambda block: -block.name.count("."))


def named_modules(task: Task, model: nn.Module, settings: TrainSettings) -> tuple[list[nn.Module], str]:
    """Return the modules that are named as blocks, and what names them.

    The job file, the task or the size rule names them; the text for the size rule is empty.

    Raises:
        JobError: the model has no module of such a class.
    """
    if settings.fsdp.blocks:
        return list(_of_classes(model, settings.fsdp.blocks)), "train.fsdp.blocks"
    if (of_task := task.blocks(model)) is not None:
        return list(of_task), f"{type(task).__name__}.blocks()"
    return list(_of_size(model)), ""


def listed_blocks(model: nn.Module, blocks: list[Block]) -> str:
    """Return the blocks and their sizes for the log; blocks of one class and size are one entry."""
    total = _elements(model)
    kinds = Counter((type(block.module).__name__, block.elements) for block in blocks)
    listed = [f"{count} × {name} of {elements:,}" for (name, elements), count in kinds.most_common(6)]
    if len(kinds) > 6:
        listed.append(f"{len(kinds) - 6} more kinds")
    inner = {id(p) for block in blocks for p in block.module.parameters()}
    rest = sum(p.numel() for p in model.parameters() if id(p) not in inner)
    if not blocks:
        return f"{total:,} parameters without blocks: every rank gathers all of them at once"
    return f"{total:,} parameters in blocks: {', '.join(listed)}; outside the blocks {rest:,}"


def _of_classes(model: nn.Module, classes: Iterable[str]) -> Iterator[nn.Module]:
    present = {type(module).__name__ for module in model.modules()}
    for name in classes:
        if name not in present:
            raise JobError(
                f"train.fsdp.blocks names the class {name}, and no module of the model is one.\n"
                f"The classes of its modules: {', '.join(sorted(present))}."
            )
    yield from (module for module in model.modules() if type(module).__name__ in set(classes))


def _of_size(model: nn.Module) -> Iterator[nn.Module]:
    total = _elements(model)

    def below(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            elements = _elements(child)
            if elements * _LEAST < total:
                continue
            divisible = not isinstance(child, _WHOLE) and any(_elements(c) for c in child.children())
            if divisible and (elements * _MOST > total or not _has_forward(child)):
                yield from below(child)
            elif _has_forward(child):
                yield child

    yield from below(model)


def _large_leaves(model: nn.Module, found: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """Yield embedding and head: modules without children, outside the blocks, with many of the parameters.

    Their part of the parameters is worth a collective of its own. Otherwise all of them would be gathered
    together, for the whole step.
    """
    total, inside = _elements(model), {id(module) for block in found for module in block.modules()}
    for module in model.modules():
        is_leaf = not any(True for _ in module.children()) and module is not model
        is_large = is_leaf and _elements(module) * _LARGE >= total
        if is_large and id(module) not in inside and _has_forward(module):
            yield module


def _elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _has_forward(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward


def _tied(block: nn.Module, model: nn.Module) -> tuple[str, str] | None:
    """Return the names of a parameter that is inside the block and outside it, or None."""
    modules = {*block.modules()}
    inside: dict[nn.Parameter, str] = {}
    outside: dict[nn.Parameter, str] = {}
    for prefix, module in model.named_modules():
        names = inside if module in modules else outside
        for key, parameter in module.named_parameters(prefix, recurse=False, remove_duplicate=False):
            names.setdefault(parameter, key)
    tied = next((parameter for parameter in block.parameters() if parameter in outside), None)
    return None if tied is None else (inside[tied], outside[tied])
