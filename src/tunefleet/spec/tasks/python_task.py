"""`taskType: python`: runs a function that stands in the document."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from tunefleet.errors import InputError
from tunefleet.spec.base import Text
from tunefleet.spec.expressions.lookup import Envelopes
from tunefleet.spec.options.environment import Variables
from tunefleet.spec.tasks.api_and_python import (
    Code,
    Emits,
    FunctionName,
    Inputs,
    PythonOutputSpec,
    Requirements,
    Runtime,
)
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, BaseTaskSpec
from tunefleet.spec.tasks.cross_field_checks import Faults
from tunefleet.spec.value_preview import show


class PythonTaskSpec(BaseTaskSpec):
    """`taskType: python`: runs a function that stands in the document; needs a worker with `--allow-code`."""

    task_type: Literal["python"] = Field(default="python", alias="taskType")
    """`python`"""
    code: Code
    """Source, 256 KiB at most. `${` in it is Python's own: nothing is replaced."""
    entrypoint: FunctionName = "main"
    """The function. It is called with `inputs`, a mapping from each stage before to the folder of its result."""
    requirements: Requirements = ()
    """Packages for pip; need `network: bridge`."""
    inputs: Inputs | None = None
    """Stages whose results the function gets; by default all that the task depends on."""
    timeout_s: Runtime = Field(default=600.0, alias="timeoutSeconds")
    """Seconds that the function may run, an hour at most."""
    network: Literal["none", "bridge"] = "none"
    """`none`: without network."""
    env: Variables = Field(default_factory=dict)
    """Variables of its environment; a secret is written `${secret:NAME}`."""
    emits: Emits = ()
    """Numbers that the function must give as `metrics` of its result."""
    output_limits: PythonOutputSpec = Field(default_factory=PythonOutputSpec, alias="pythonOutput")
    """How much it may leave."""
    upstream: Annotated[dict[Text, Text], Field(max_length=200)] = Field(default_factory=dict)
    """Stage → id of its task; the server writes it when the stages are done."""

    @property
    def requires_code(self) -> bool:
        """It does."""
        return True

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what the task leaves."""
        del blocks
        return (*ALWAYS_LEFT, "result.json", "metrics.json", "output")

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        if blocks.get("requirements") and blocks.get("network") == "none":
            found.append(("requirements", "cannot be installed without network", "add network: bridge"))
        code, name = blocks.get("code"), blocks.get("entrypoint")
        if isinstance(code, str) and isinstance(name, str) and name not in _functions(code):
            found.append(("entrypoint", f"{show(name)} is not a function of the code", "name one that it defines"))
        return found


def _functions(code: str) -> set[str]:
    """Return the names that the code gives to something at its outermost level."""
    found: set[str] = set()
    for node in ast.parse(code).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {each.asname or each.name for each in names}
    return found


def with_upstream(spec: Mapping[str, Any], envelopes: Envelopes) -> dict[str, Any]:
    """Return the spec of a task that is ready, with whose results its code gets; other kinds stay as they are.

    Args:
        spec: The mapping below `spec`, without references.
        envelopes: Task → its result, with its id; of all that the task depends on.

    Raises:
        InputError: If the code is to get what the task does not depend on.
    """
    if spec.get("taskType") != "python":
        return dict(spec)
    wanted = [each if isinstance(each, str) else each.get("stage") for each in spec.get("inputs") or envelopes]
    lacking = next((name for name in wanted if name not in envelopes), None)
    if lacking is not None:
        said = f"spec.inputs names {lacking!r}, which the task does not depend on."
        raise InputError(said, hint="Add it to dependsOn.")
    return {**spec, "upstream": {name: envelopes[name]["task_id"] for name in wanted if "task_id" in envelopes[name]}}
