"""`taskType: python`: runs a Python function from the workflow file."""

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
from tunefleet.validation_errors import show


class PythonTaskSpec(BaseTaskSpec):
    """`taskType: python`: runs a Python function from the workflow file; requires a worker with `--allow-code`."""

    task_type: Literal["python"] = Field(default="python", alias="taskType")
    """`python`"""
    code: Code
    """Source code, at most 256 KiB. `${` in it is not replaced."""
    entrypoint: FunctionName = "main"
    """Function to call, with `inputs`: a mapping from each upstream stage to the folder of its result."""
    requirements: Requirements = ()
    """pip requirements; need `network: bridge`."""
    inputs: Inputs | None = None
    """Stages whose results the function gets; default: all dependencies of the task."""
    timeout_s: Runtime = Field(default=600.0, alias="timeoutSeconds")
    """Timeout of the function in seconds, at most one hour."""
    network: Literal["none", "bridge"] = "none"
    """Network access: `none` or `bridge`."""
    env: Variables = Field(default_factory=dict)
    """Environment variables; write secrets as `${secret:NAME}`."""
    emits: Emits = ()
    """Metrics that the function must return in `metrics` of its result."""
    output_limits: PythonOutputSpec = Field(default_factory=PythonOutputSpec, alias="pythonOutput")
    """Limits of the output."""
    upstream: Annotated[dict[Text, Text], Field(max_length=200)] = Field(default_factory=dict)
    """Stage → id of its task; set by the server when the stages have completed."""

    @property
    def requires_code(self) -> bool:
        """Always true."""
        return True

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the outputs of the task."""
        del blocks
        return (*ALWAYS_LEFT, "result.json", "metrics.json", "output")

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        if blocks.get("requirements") and blocks.get("network") == "none":
            found.append(("requirements", "cannot be installed without network", "add network: bridge"))
        code, name = blocks.get("code"), blocks.get("entrypoint")
        if isinstance(code, str) and isinstance(name, str) and name not in _functions(code):
            found.append(
                ("entrypoint", f"{show(name)} is not defined in the code", "use the name of a function that it defines")
            )
        return found


def _functions(code: str) -> set[str]:
    """Return the names that the code defines at module level."""
    found: set[str] = set()
    # Parsed, not executed: the code runs on the worker only.
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
    """Return the spec of a ready task with the task ids of its inputs; other task types stay unchanged.

    Args:
        spec: The mapping below `spec`, without references.
        envelopes: Task → its stored result, for all dependencies.

    Raises:
        InputError: If an input is not a dependency of the task.
    """
    if spec.get("taskType") != "python":
        return dict(spec)
    wanted = [each if isinstance(each, str) else each.get("stage") for each in spec.get("inputs") or envelopes]
    missing = next((name for name in wanted if name not in envelopes), None)
    if missing is not None:
        message = f"spec.inputs names {missing!r}, which the task does not depend on."
        raise InputError(message, hint="Add it to dependsOn.")
    return {**spec, "upstream": {name: envelopes[name]["task_id"] for name in wanted if "task_id" in envelopes[name]}}
