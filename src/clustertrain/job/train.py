"""The section `train` of a job file: clustertrain's training loop.

Its fields are those of training/settings.py, and those that only the job file has.
`docs/reference/job-file.md` is generated from the docstrings of both.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, StrictBool, model_validator

from clustertrain.job.sections import Section
from clustertrain.job.values import Count, CountOrZero, Loggers, Refused
from clustertrain.node.units import integer, shortened
from clustertrain.training import settings


class LearningRate(Section, settings.LearningRate):
    pass


class EvalEvery(Section, settings.EvalEvery):
    @model_validator(mode="after")
    def _one_period(self) -> EvalEvery:
        self._exactly_one_of("epochs", "steps", example="epochs: 1")
        return self


class EarlyStop(Section, settings.EarlyStop):
    pass


def _first_and_last(value: object) -> object:
    steps = [integer(step) for step in value] if isinstance(value, list | tuple) else []
    if len(steps) != 2 or not 1 <= steps[0] <= steps[1]:
        raise ValueError("must be [first, last], with 1 ≤ first ≤ last\nfor example: [10, 15]")
    return steps


class Profile(Section, settings.Profile):
    steps: Annotated[
        tuple[int, int], BeforeValidator(_first_and_last, json_schema_input_type=tuple[Count, Count])
    ]


class Fsdp(Section, settings.Fsdp):
    pass


class Ddp(Section, settings.Ddp):
    pass


class Compile(Section, settings.Compile):
    pass


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


class Train(Section, settings.Train):
    compile: CompileOrBool = None
    loader_workers: Annotated[CountOrZero, Field(le=1024)] | None = None

    log: Loggers = ("tensorboard",)
    """Where the metrics are written as a curve: `tensorboard`, `mlflow`, `wandb`, one or several. With an
    empty list, none."""

    sanity: StrictBool = True
    """Try one evaluation batch with all metrics and images before the first step of a run that has never
    trained, or whose job or code has changed. `check` and `submit` rehearse this and one training batch."""

    @model_validator(mode="before")
    @classmethod
    def _lr_is_an_argument(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("lr"), int | float | str):
            raise Refused(
                f"{shortened(str(data['lr']))} is not a mapping\n"
                "the section lr configures how the learning rate follows the batch size\n"
                "pass the learning rate itself to your task, under args",
                "lr",
            )
        return data

    @model_validator(mode="after")
    def _strategy_has_what_it_needs(self) -> Train:
        if self.strategy == "ddp":
            if self.fsdp != Fsdp():
                raise Refused(
                    "is given, but strategy is ddp\n"
                    "the section configures FSDP\nset strategy: fsdp, or remove it",
                    "fsdp",
                )
            return self
        unfit = {
            "precision": (self.precision == "fp16", "bf16 or fp32: bf16 needs no loss scaling"),
            "compare_weights_every": (
                bool(self.compare_weights_every),
                "0: no two workers have the same weights",
            ),
        }
        for key, (is_unfit, remedy) in unfit.items():
            if is_unfit:
                raise Refused(
                    f"is {getattr(self, key)}, and strategy is fsdp\nFSDP does not support it\nset {remedy}",
                    key,
                )
        return self

    @model_validator(mode="after")
    def _one_length_and_one_batch(self) -> Train:
        self._exactly_one_of("epochs", "steps", example="epochs: 3")
        self._exactly_one_of("batch_size", "global_batch_size", example="batch_size: 32")
        return self
