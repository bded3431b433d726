"""`spec.engine`: whose machines a task runs on, if not on the workers that are there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tunefleet.spec.base import Block, wrong

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._,:+-]{0,127}$"
_TIME: Final = r"^\d{1,5}(:\d{2}){0,2}$|^\d{1,4}-\d{1,2}(:\d{2}){0,2}$"

_INSIDE: Final = frozenset({"api", "echo"})


def _shaped(pattern: str, message: str, hint: str) -> Callable[[str], str]:
    """Return a validator that says in words what it wants."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise wrong(message, hint)
        return value

    return check


# One name, as the cluster knows it; no spaces, no quotes.
Word = Annotated[
    str,
    AfterValidator(
        _shaped(
            _NAME,
            "must be one name, as Slurm knows it",
            "a letter or digit, then letters, digits and . _ , : + -; no spaces, 128 characters at most",
        )
    ),
    WithJsonSchema({"type": "string", "pattern": _NAME}),
]
# A time as Slurm reads it.
Time = Annotated[
    str,
    AfterValidator(
        _shaped(_TIME, "must be a time in Slurm's words", 'write minutes ("30"), "4:00:00", "2-12" or "2-12:30:00"')
    ),
    WithJsonSchema({"type": "string", "pattern": _TIME}),
]


class EngineSpec(Block):
    """`spec.engine`: the system that hands out the machines; `engine: slurm` and `engine: ray` are short for `type`.

    For the time of the task a worker of its own is started on each of `resources.nodes` nodes.
    """

    type: Literal["slurm", "ray"]
    """Which system; the server says at the submit if it has none such."""
    partition: Word | None = None
    """Slurm: the partition."""
    account: Word | None = None
    """Slurm: the account that is charged."""
    qos: Word | None = None
    """Slurm: the quality of service."""
    time: Time | None = None
    """Slurm: how long the nodes are wanted at a time, in Slurm's words, such as `30` (minutes), `4:00:00` or `2-12`.
    Before it is over the training saves, and goes on when Slurm gives nodes again."""
    constraint: Word | None = None
    """Slurm: a feature that the nodes must have."""
    reservation: Word | None = None
    """Slurm: the reservation to run in."""
    gpu_type: Word | None = None
    """Slurm: the type of GPU by Slurm's own name, where `resources.hardware.gpu.count` alone is not enough."""
    exclusive: bool = False
    """Slurm: no other job on the same nodes."""

    @model_validator(mode="after")
    def _slurm_only(self) -> EngineSpec:
        named = sorted(self.model_fields_set - {"type"})
        if self.type != "slurm" and named:
            raise wrong("is an option of slurm", f"leave it out with type: {self.type}", at=named[0])
        return self

    @property
    def options(self) -> dict[str, str]:
        """What is told to the engine beside the hardware."""
        told = self.model_dump(exclude={"type"}, exclude_none=True)
        return {name: "true" if value is True else str(value) for name, value in told.items() if value is not False}


def engine_faults(blocks: Mapping[str, Any]) -> list[tuple[str, str, str | None]]:
    """Find what does not go with an engine; `blocks` as `faults` of a task kind has them."""
    engine, kind = blocks.get("engine"), str(blocks.get("task_type"))
    if engine is None:
        return []
    resources, parallel = blocks.get("resources"), blocks.get("parallel")
    uploads = getattr(blocks.get("checkpoint"), "upload", True)
    split = getattr(resources, "replicas", 1) > 1 or bool(getattr(parallel, "enabled", False))
    checks = (
        (kind in _INSIDE, f"{kind} tasks run inside a worker, and need no nodes", "leave it out"),
        (split, "parts of a task go to the workers that are there", "leave one of them out"),
        (
            blocks.get("federation") is not None,
            "a federation's parts go to the workers that are there",
            "leave one of them out",
        ),
        (
            not uploads,
            "the nodes go when the task ends or pauses, and with them a checkpoint that was not uploaded",
            "leave checkpoint.upload: false out",
        ),
    )
    return [("engine", message, hint) for failed, message, hint in checks if failed]


def _engine(value: Any) -> Any:
    if isinstance(value, str):
        return {"type": value}
    if not isinstance(value, Mapping | EngineSpec):
        raise wrong("must be slurm, ray, or a mapping with one of them as its type", "write engine: slurm")
    return value


class _Described:
    """How an engine is described in the JSON Schema: made when that is asked for, since it takes a validator."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        del core_schema, handler
        return {"anyOf": [{"enum": ["slurm", "ray"]}, EngineSpec.model_json_schema()], "examples": ["slurm", "ray"]}


# A block, or the name of the system alone.
Engine = Annotated[EngineSpec, BeforeValidator(_engine), _Described()]
