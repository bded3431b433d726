"""`spec.engine`: run a task on nodes from Slurm or Ray instead of the connected workers."""

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

# Inline tasks: they run inside a worker's process and need no node.
_INLINE: Final = frozenset({"api", "echo"})


def _shaped(pattern: str, message: str, hint: str) -> Callable[[str], str]:
    """Return a validator for a pattern with a readable message."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise wrong(message, hint)
        return value

    return check


# A name in Slurm; it becomes an `sbatch` option, so no spaces and no quotes.
Word = Annotated[
    str,
    AfterValidator(
        _shaped(
            _NAME,
            "must be a Slurm name",
            "a letter or digit, then letters, digits and . _ , : + -; no spaces, 128 characters at most",
        )
    ),
    WithJsonSchema({"type": "string", "pattern": _NAME}),
]
# A duration in Slurm's format.
Time = Annotated[
    str,
    AfterValidator(
        _shaped(_TIME, "must be a time in Slurm's format", 'write minutes ("30"), "4:00:00", "2-12" or "2-12:30:00"')
    ),
    WithJsonSchema({"type": "string", "pattern": _TIME}),
]


class EngineSpec(Block):
    """`spec.engine`: the cluster manager that provides the nodes; `engine: slurm` is short for `type: slurm`.

    A dedicated worker is started on each of `resources.nodes` nodes for the duration of the task.
    """

    type: Literal["slurm", "ray"]
    """Cluster manager; the submit is rejected if the server has none of this type."""
    partition: Word | None = None
    """Slurm: partition."""
    account: Word | None = None
    """Slurm: account to charge."""
    qos: Word | None = None
    """Slurm: quality of service."""
    time: Time | None = None
    """Slurm: time limit of one allocation in Slurm's format, such as `30` (minutes), `4:00:00` or `2-12`. Before it
    ends, the task saves a checkpoint; it resumes when Slurm provides nodes again."""
    constraint: Word | None = None
    """Slurm: feature that the nodes must have."""
    reservation: Word | None = None
    """Slurm: reservation to run in."""
    gpu_type: Word | None = None
    """Slurm: GPU type by its name in Slurm, if `resources.hardware.gpu.count` is not enough."""
    exclusive: bool = False
    """Slurm: do not share the nodes with other jobs."""

    @model_validator(mode="after")
    def _slurm_only(self) -> EngineSpec:
        # All options except `type` become `sbatch` options; Ray has none of them.
        named = sorted(self.model_fields_set - {"type"})
        if self.type != "slurm" and named:
            raise wrong("is only for slurm", f"remove it with type: {self.type}", at=named[0])
        return self

    @property
    def options(self) -> dict[str, str]:
        """Options for the engine, besides the hardware."""
        given = self.model_dump(exclude={"type"}, exclude_none=True)
        return {name: "true" if value is True else str(value) for name, value in given.items() if value is not False}


def engine_faults(blocks: Mapping[str, Any]) -> list[tuple[str, str, str | None]]:
    """Find keys that cannot be combined with an engine; `blocks` as passed to `faults` of a task type."""
    engine, kind = blocks.get("engine"), str(blocks.get("task_type"))
    if engine is None:
        return []
    resources, parallel = blocks.get("resources"), blocks.get("parallel")
    # Task types without this block upload nothing, so there is nothing to lose.
    uploads = getattr(blocks.get("checkpoint"), "upload", True)
    split = getattr(resources, "replicas", 1) > 1 or bool(getattr(parallel, "enabled", False))
    checks = (
        (kind in _INLINE, f"{kind} tasks run inside a worker and need no nodes", "remove it"),
        (split, "shards of a task run on connected workers only", "remove one of them"),
        (
            blocks.get("federation") is not None,
            "the parts of a federation run on connected workers only",
            "remove one of them",
        ),
        (
            not uploads,
            "a checkpoint that is not uploaded is lost when the nodes are released",
            "remove checkpoint.upload: false",
        ),
    )
    return [("engine", message, hint) for failed, message, hint in checks if failed]


def _engine(value: Any) -> Any:
    # The short form `engine: slurm`.
    if isinstance(value, str):
        return {"type": value}
    if not isinstance(value, Mapping | EngineSpec):
        raise wrong("must be slurm, ray, or a mapping with one of them as its type", "set engine: slurm")
    return value


class _Described:
    """The JSON Schema of an engine, generated on demand because that needs the built validator."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        del core_schema, handler
        return {"anyOf": [{"enum": ["slurm", "ray"]}, EngineSpec.model_json_schema()], "examples": ["slurm", "ray"]}


# A block, or only the type.
Engine = Annotated[EngineSpec, BeforeValidator(_engine), _Described()]
