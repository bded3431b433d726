"""The tasks of a document: each one's spec, and what it waits for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from pydantic import ValidationError

from tunefleet.errors import Fault, ReferenceFault
from tunefleet.spec.documents.dependencies import Edge, edges
from tunefleet.spec.documents.fault_messages import Unknown, below_path, explain, fault_at
from tunefleet.spec.documents.merge import SPEC
from tunefleet.spec.documents.pipeline import Draft, drafts
from tunefleet.spec.documents.typed import read_spec
from tunefleet.spec.expressions import result_keys
from tunefleet.spec.expressions.budget import MAX_MERGED_CHARACTERS, MAX_MERGED_VALUES, MAX_PLACEHOLDERS, WAY_OUT
from tunefleet.spec.expressions.condition import ConditionSpec
from tunefleet.spec.expressions.placeholders import Reference, Stray
from tunefleet.spec.expressions.references import Found, find, resolve
from tunefleet.spec.expressions.size_limits import Room
from tunefleet.spec.expressions.template_prompts import is_template
from tunefleet.spec.tasks.task_types import TaskSpec
from tunefleet.spec.text import Path, Source
from tunefleet.spec.value_preview import MAX_FAULTS, cut, more

_SHOWN: Final = 8
_ANYTHING: Final = frozenset({("data", "items"), ("data", "template")})
"""Below these, what a task gives is made what the next one takes."""
_TYPES: Final = ("must be a text", "must be a number", "must be a whole number", "must be a list", "must be a mapping",
                 "must be true or false", "must be an address")  # fmt: skip
_NAMED: Final = {
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
}
_MAX_LOOKED_AT: Final = 1_000
"""Faults that are looked for; one in what all share is found again in each task."""


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
        strangers: Where each of `external` is named first.
        source: The mapping below `spec`, with the place of each value in the document.
    """

    name: str
    spec: TaskSpec | None
    raw: dict[str, Any]
    depends_on: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    condition: ConditionSpec | None = None
    strangers: tuple[Edge, ...] = field(default=(), compare=False, repr=False)
    source: Source = field(default_factory=Source, compare=False, repr=False)

    @property
    def kind(self) -> str:
        """The task kind."""
        return str(self.raw["taskType"])

    def fault(self, pointer: str, message: str, hint: str | None = None) -> Fault:
        """Make a fault that stands where a value of this task stands.

        Args:
            pointer: Dotted path below `spec`.
            message: What is wrong.
            hint: What to write instead.
        """
        return fault_at(below_path(SPEC, pointer), message, self.source, hint=hint)


def read_tasks(source: Source, name: str, faults: list[Fault]) -> tuple[TaskNode, ...]:
    """Read the tasks of a document.

    Args:
        name: What the task is called if it is the only one.
        faults: Gets everything that is wrong; then nothing is returned.
    """
    found = drafts(source, name, faults)
    names = dict.fromkeys(draft.name for draft in found)
    looked = _look(found, names, source, faults)
    waits: dict[str, list[Edge]] = {}
    for edge in edges(source, found, looked.conditions, looked.placeholders, faults):
        waits.setdefault(edge.task, []).append(edge)
    faults.extend(_told(found[: len(looked.wrong)], looked.wrong))
    if not faults:  # of a document that is wrong otherwise, the kinds may be meant otherwise
        faults.extend(_valueless(found, looked))
    if faults:
        return ()
    return tuple(
        _node(draft, spec, looked.conditions.get(draft.name), names, waits.get(draft.name, []))
        for draft, spec in zip(found, looked.specs, strict=True)
    )


def _valueless(found: Sequence[Draft], looked: _Looked) -> list[Fault]:
    """Tell the references that can have no value, whatever the tasks before them do."""
    specs = {draft.name: draft.source.data["spec"] for draft in found}
    known: dict[Reference, tuple[str, str] | None] = {}  # many tasks refer to one value
    told: list[Fault] = []
    for draft in found:
        decides = looked.conditions.get(draft.name)
        if decides is not None and decides.node in specs:
            wrong = result_keys.fault_of(decides.reference, specs[decides.node])
            if wrong is not None:
                told.append(fault_at((*SPEC, "condition", "field"), wrong[0], draft.source, hint=wrong[1]))
        for each in looked.placeholders.get(draft.name, ()):
            if not isinstance(each.piece, Reference) or each.piece.node not in specs:
                continue
            upstream = specs[each.piece.node]
            if each.piece not in known:
                known[each.piece] = result_keys.fault_of(each.piece, upstream)
            wrong = known[each.piece] or result_keys.misplaced(each.where, each.piece, each.before, upstream)
            if wrong is not None:
                told.append(fault_at((*SPEC, *each.where), wrong[0], draft.source, hint=wrong[1]))
            if len(told) == MAX_FAULTS:
                return told
    return told or _of_another_type(found, looked, specs)


def _of_another_type(found: Sequence[Draft], looked: _Looked, specs: Mapping[str, Any]) -> list[Fault]:
    """Tell the references whose value will have a type that its key does not take."""
    told: list[Fault] = []
    seen: set[Any] = set()
    for draft in found:
        standing = looked.placeholders.get(draft.name, ())
        examples = {
            each.where: example
            for each in standing
            if each.alone
            and isinstance(each.piece, Reference)
            and each.piece.node in specs
            and each.where[:2] not in _ANYTHING
            and (example := result_keys.example_of(each.piece, specs[each.piece.node])) is not None
        }
        shape = (specs[draft.name].get("taskType"), tuple((where, str(value)) for where, value in examples.items()))
        if not examples or shape in seen:
            continue
        seen.add(shape)  # many tasks refer to values of the same types
        tried = draft.source.part({"spec": _with(specs[draft.name], examples)}, draft.source.origins)
        faults: list[Fault] = []
        read_spec(tried, faults, _unknown([each for each in standing if each.where not in examples]))
        texts = {each.where: each.piece.text for each in standing if isinstance(each.piece, Reference)}
        for fault in faults:
            where = next(
                (each for each in examples if fault_at((*SPEC, *each), "", draft.source).path == fault.path), None
            )
            if where is not None and fault.message.startswith(_TYPES):
                must = fault.message.partition(", not ")[0]
                message = f"{texts[where]} is {_NAMED[type(examples[where])]}, and this {must}"
                told.append(replace(fault, message=message, hint="refer to another key"))
        if len(told) >= MAX_FAULTS:
            break
    return told


def _with(data: Any, values: Mapping[Path, Any], at: Path = ()) -> Any:
    """Return data with other values at some paths."""
    if at in values:
        return values[at]
    if isinstance(data, Mapping):
        return {key: _with(value, values, (*at, key)) for key, value in data.items()}
    if isinstance(data, list):
        return [_with(value, values, (*at, index)) for index, value in enumerate(data)]
    return data


@dataclass(slots=True)
class _Looked:
    """What there is in tasks, one after the other, and what is wrong in each."""

    specs: list[TaskSpec | None] = field(default_factory=list)
    wrong: list[list[Fault]] = field(default_factory=list)
    conditions: dict[str, ConditionSpec] = field(default_factory=dict)
    placeholders: dict[str, list[Found]] = field(default_factory=dict)


def _look(found: Sequence[Draft], names: Collection[str], source: Source, faults: list[Fault]) -> _Looked:
    """Look at each task by itself, until more is wrong than anybody reads."""
    looked, left, count = _Looked(), MAX_PLACEHOLDERS, 0
    room = Room(MAX_MERGED_CHARACTERS, MAX_MERGED_VALUES, "a document")
    different: set[Fault] = set()
    for draft in found:
        mine: list[Fault] = []
        standing = list(islice(find(draft.source.data["spec"], names), left + 1))
        left -= len(standing)
        if left < 0:
            faults.append(_too_many(draft, standing[-1]))
            break
        looked.specs.append(_spec(draft, standing, mine, room))
        condition = _condition(draft, source, mine)
        if condition is not None:
            looked.conditions[draft.name] = condition
        looked.placeholders.setdefault(draft.name, standing)
        looked.wrong.append(mine)
        count += len(mine)
        different.update(mine)
        if draft is not found[-1] and (count >= _MAX_LOOKED_AT or len(different) >= MAX_FAULTS):
            faults.append(more(0, fault_at(draft.at, "", source)))
            break
    return looked


def _too_many(draft: Draft, last: Found) -> Fault:
    message = f"the tasks have more than {MAX_PLACEHOLDERS:,} placeholders, each with what all share"
    return fault_at((*SPEC, *last.where), message, draft.source, hint=WAY_OUT)


def _spec(draft: Draft, placeholders: Sequence[Found], faults: list[Fault], room: Room) -> TaskSpec | None:
    data = draft.source.data["spec"]
    strays = [each for each in placeholders if isinstance(each.piece, Stray)]
    for each in strays[:MAX_FAULTS]:
        assert isinstance(each.piece, Stray)
        message = f"{cut(each.piece.text)} {each.piece.problem}"
        faults.append(fault_at((*SPEC, *each.where), message, draft.source, hint=each.piece.hint))
    if len(strays) > MAX_FAULTS:
        place = fault_at((*SPEC, *strays[MAX_FAULTS].where), "", draft.source)
        faults.append(more(len(strays) - MAX_FAULTS, place))
    spec = read_spec(draft.source, faults, _unknown(placeholders))
    if any(isinstance(each.piece, Reference) for each in placeholders):
        return None
    if is_template(data) and not faults:
        # It refers to nothing, so it is known now what it comes to.
        try:
            data = draft.source.data["spec"] = resolve(data, {}, room)
        except ReferenceFault as error:
            where = (*SPEC, "data", "template")
            faults.append(fault_at(where, error.message.partition(": ")[2], draft.source, hint=error.hint))
            return None
        return read_spec(draft.source, faults)
    return spec


def _unknown(placeholders: Sequence[Found]) -> Unknown:
    open_ones = [each for each in placeholders if isinstance(each.piece, Reference | Stray)]
    return Unknown(
        alone=frozenset((*SPEC, *each.where) for each in open_ones if each.alone or isinstance(each.piece, Stray)),
        inside=frozenset((*SPEC, *each.where) for each in open_ones),
    )


def _condition(draft: Draft, source: Source, faults: list[Fault]) -> ConditionSpec | None:
    if draft.condition is None:
        return None
    try:
        found = ConditionSpec.model_validate(draft.condition, by_alias=True, by_name=False)
        # There, a task whose condition is not met counts as done.
        goes_on = found.on_skipped is None and source.data.get("apiVersion") == "flowmesh/v1"
        return found.model_copy(update={"on_skipped": "run"}) if goes_on else found
    except ValidationError as error:
        faults.extend(explain(error, ConditionSpec, draft.source, (*SPEC, "condition")))
        return None


def _node(
    draft: Draft, spec: TaskSpec | None, condition: ConditionSpec | None, names: Collection[str], waits: Sequence[Edge]
) -> TaskNode:
    first: dict[str, Edge] = {}
    for edge in waits:
        first.setdefault(edge.upstream, edge)
    here = tuple(name for name in first if name in names and name != draft.name)
    inside = set(here)
    others = tuple(name for name in first if name not in inside)
    strangers = tuple(first[name] for name in others)
    return TaskNode(draft.name, spec, draft.source.data["spec"], here, others, condition, strangers, draft.source)


def _told(found: Sequence[Draft], wrong: Sequence[Sequence[Fault]]) -> list[Fault]:
    """Tell each fault once; one in what all share that is a fault in some tasks only, with their names."""
    tasks: dict[Fault, list[str]] = {}
    for draft, faults in zip(found, wrong, strict=True):
        for fault in faults:
            tasks.setdefault(fault, []).append(draft.name)
    told = []
    for fault, names in tasks.items():
        own = fault.path.startswith(("spec.stages", "spec.graph")) or len(names) == len(found)
        others = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        where = f"{', '.join(map(cut, names[:_SHOWN]))}{others}"
        told.append(fault if own else replace(fault, message=f"{fault.message} (in {where})"))
    return told
