"""A loss has to call the model itself: DDP and FSDP exchange gradients only for what that call computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from clustertrain.errors import JobError
from clustertrain.training.task import Task

_REMEDY = (
    "Put what the loss needs of the model into its forward(), and call model(…) in the loss: only then are "
    "the gradients averaged over the workers."
)


@contextmanager
def calling_model(task: Task, wrapped: nn.Module) -> Iterator[None]:
    """Check that the task's loss, called inside, calls the model of several ranks.

    The backward pass comes after it.

    Raises:
        JobError: the loss does not call the model, or reads what DDP's wrapper does not have.
    """
    name, called = f"{type(task).__name__}.loss()", list[bool]()
    hook = wrapped.register_forward_pre_hook(lambda *_: called.append(True))
    try:
        yield
    except AttributeError as error:
        if error.obj is not wrapped:
            raise
        raise JobError(
            f"{name} reads model.{error.name}, and with several workers the model is in "
            f"{type(wrapped).__name__}, which lacks it.\n{_REMEDY}"
        ) from error
    finally:
        hook.remove()
    if not called:
        raise JobError(
            f"{name} never calls model(…): with several workers each would train its own model.\n{_REMEDY}"
        )
