"""`taskType: python`: runs a function that stands in the document."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from tunefleet.spec.base_task import ALWAYS_LEFT, BaseTaskSpec
from tunefleet.spec.calling import Code, Emits, FunctionName, Inputs, PythonOutputSpec, Requirements, Runtime
from tunefleet.spec.environment import Variables
from tunefleet.spec.together import Faults


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
    output_limits: PythonOutputSpec = Field(default=PythonOutputSpec(), alias="pythonOutput")
    """How much it may leave."""

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
            found.append(("entrypoint", f"{name!r} is not a function of the code", "name one that it defines"))
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
