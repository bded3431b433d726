"""The tasks of a document: each one's spec, and what it waits for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from tunefleet.errors import Fault
from tunefleet.spec.condition import ConditionSpec
from tunefleet.spec.edges import Edge, edges
from tunefleet.spec.explain import Unknown, explain, fault_at
from tunefleet.spec.merge import SPEC
from tunefleet.spec.pipeline import Draft, drafts
from tunefleet.spec.placeholders import Reference, Stray
from tunefleet.spec.references import Found, find, resolve
from tunefleet.spec.tasks import TaskSpec
from tunefleet.spec.template_prompts import is_template
from tunefleet.spec.text import Source
from tunefleet.spec.typed import read_spec

_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class TaskNode:
    """A task of a workflow.

    Args:
        name: Its name, unique in the workflow: of the stage or node, or `metadata.name` of a single task.
        spec: What it does; None if it has references, which are replaced once the tasks before it have ended.
        raw: The mapping below `spec`, merged with what all stages share, as written: references are left in, but not
            `dependsOn` and `condition`.
        depends_on: Names of the tasks in this document that must be completed before.
        external: Ids of tasks submitted before that must be completed before, as written.
        condition: Whether it runs at all, judged by the result of one of `depends_on` or `external`.
    """

    name: str
    spec: TaskSpec | None
    raw: dict[str, Any]
    depends_on: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    condition: ConditionSpec | None = None

    @property
    def kind(self) -> str:
        """The task kind."""
        return str(self.raw["taskType"])


def read_tasks(source: Source, name: str, faults: list[Fault]) -> tuple[TaskNode, ...]:
    """Read the tasks of a document.

    Args:
        source: The document.
        name: What the task is called if it is the only one.
        faults: Gets everything that is wrong; then what is returned is of no use.
    """
    found = drafts(source, name, faults)
    names = dict.fromkeys(draft.name for draft in found)
    wrong: list[list[Fault]] = [[] for _ in found]
    specs = [_spec(draft, names, mine) for draft, mine in zip(found, wrong, strict=True)]
    conditions = {draft.name: _condition(draft, mine) for draft, mine in zip(found, wrong, strict=True)}
    good = {task: condition for task, condition in conditions.items() if condition is not None}
    waits: dict[str, list[Edge]] = {}
    for edge in edges(source, found, good, faults):
        waits.setdefault(edge.task, []).append(edge)
    faults.extend(_told(found, wrong))
    return tuple(
        _node(draft, spec, conditions[draft.name], names, waits.get(draft.name, []))
        for draft, spec in zip(found, specs, strict=True)
    )


def _spec(draft: Draft, names: Collection[str], faults: list[Fault]) -> TaskSpec | None:
    data = draft.source.data["spec"]
    placeholders = list(find(data, names))
    for each in placeholders:
        if isinstance(each.piece, Stray):
            message = f"{each.piece.text} {each.piece.problem}"
            faults.append(fault_at((*SPEC, *each.where), message, draft.source, hint=each.piece.hint))
    spec = read_spec(draft.source, faults, _unknown(placeholders))
    if any(isinstance(each.piece, Reference) for each in placeholders):
        return None
    if is_template(data) and not faults:
        # It refers to nothing, so it is known now what it comes to.
        data = draft.source.data["spec"] = resolve(data, {})
        return read_spec(draft.source, faults)
    return spec


def _unknown(placeholders: Sequence[Found]) -> Unknown:
    open_ones = [each for each in placeholders if isinstance(each.piece, Reference | Stray)]
    return Unknown(
        alone=frozenset((*SPEC, *each.where) for each in open_ones if each.alone or isinstance(each.piece, Stray)),
        inside=frozenset((*SPEC, *each.where) for each in open_ones),
    )


def _condition(draft: Draft, faults: list[Fault]) -> ConditionSpec | None:
    if draft.condition is None:
        return None
    try:
        return ConditionSpec.model_validate(draft.condition, by_alias=True, by_name=False)
    except ValidationError as error:
        faults.extend(explain(error, ConditionSpec, draft.source, (*SPEC, "condition")))
        return None


def _node(
    draft: Draft, spec: TaskSpec | None, condition: ConditionSpec | None, names: Collection[str], waits: Sequence[Edge]
) -> TaskNode:
    upstreams = tuple(dict.fromkeys(edge.upstream for edge in waits))
    here = tuple(name for name in upstreams if name in names and name != draft.name)
    others = tuple(name for name in upstreams if name not in here)
    return TaskNode(draft.name, spec, draft.source.data["spec"], here, others, condition)


def _told(found: Sequence[Draft], wrong: Sequence[Sequence[Fault]]) -> list[Fault]:
    """Tell each fault once; one in what all share that is a fault in some tasks only, with their names."""
    tasks: dict[Fault, list[str]] = {}
    for draft, faults in zip(found, wrong, strict=True):
        for fault in faults:
            tasks.setdefault(fault, []).append(draft.name)
    told = []
    for fault, names in tasks.items():
        own = fault.path.startswith(("spec.stages", "spec.graph")) or len(names) == len(found)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        where = f"{', '.join(names[:_SHOWN])}{more}"
        told.append(fault if own else replace(fault, message=f"{fault.message} (in {where})"))
    return told
