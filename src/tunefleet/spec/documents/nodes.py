"""The tasks of a workflow: each with its spec and dependencies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from pydantic import ValidationError

from tunefleet.errors import Fault, ReferenceFault
from tunefleet.spec.documents.dependencies import Edge, edges
from tunefleet.spec.documents.fault_messages import Unknown, below_path, explain, fault_at
from tunefleet.spec.documents.stages import SPEC, Draft, drafts
from tunefleet.spec.documents.typed import read_spec
from tunefleet.spec.expressions import result_keys
from tunefleet.spec.expressions.graph_template import is_template
from tunefleet.spec.expressions.lookup import ConditionSpec
from tunefleet.spec.expressions.placeholders import Reference, Stray
from tunefleet.spec.expressions.references import PlaceholderMatch, find, resolve
from tunefleet.spec.expressions.size_limits import (
    MAX_MERGED_CHARACTERS,
    MAX_MERGED_VALUES,
    MAX_PLACEHOLDERS,
    SIZE_HINT,
    SizeBudget,
)
from tunefleet.spec.tasks.task_types import TaskSpec
from tunefleet.spec.text import Path, Source
from tunefleet.spec.value_preview import MAX_FAULTS, more
from tunefleet.validation_errors import cut

_MAX_SHOWN: Final = 8
# Below these paths values of any type are accepted and converted.
_ANYTHING: Final = frozenset({("data", "items"), ("data", "template")})
_TYPES: Final = ("must be a string", "must be a number", "must be an integer", "must be a list", "must be a mapping",
                 "must be true or false", "must be a URL")  # fmt: skip
_NAMED: Final = {
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
}
# Additional checks of a task: the mapping below `spec`, and the spec as far as valid → pointer, message, hint.
TaskCheck = Callable[[Mapping[str, Any], TaskSpec | None], Iterable[tuple[str, str, str | None]]]
# Errors after which validation stops; an error in the shared keys counts once per task.
_MAX_ERRORS: Final = 1_000


@dataclass(frozen=True, slots=True)
class TaskNode:
    """A task of a workflow.

    Args:
        name: Unique name in the workflow: of the stage or node, or `metadata.name` of a single task.
        spec: The validated spec; `None` if it has references, which are replaced once the upstream tasks have ended.
        raw: The mapping below `spec`, merged with the shared keys, as written: with references, but without
            `dependsOn` and `condition`.
        depends_on: Names of upstream tasks in this workflow.
        external: Ids of upstream tasks submitted earlier, as written.
        condition: Whether it runs at all, depending on the result of one of `depends_on` or `external`.
        strangers: The first edge to each of `external`.
        source: The mapping below `spec`, with the position of each value.
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
        """The task type."""
        return str(self.raw["taskType"])

    def fault(self, pointer: str, message: str, hint: str | None = None) -> Fault:
        """Create an error at the position of a value of this task.

        Args:
            pointer: Dotted path below `spec`.
            message: What is wrong.
            hint: What to write instead.
        """
        return fault_at(below_path(SPEC, pointer), message, self.source, hint=hint)


def read_tasks(source: Source, name: str, faults: list[Fault], check: TaskCheck | None = None) -> tuple[TaskNode, ...]:
    """Read the tasks of a workflow.

    Args:
        name: Name of the task if it is the only one.
        faults: Receives all errors; if there are others than those of `check`, nothing is returned.
        check: Finds further errors of each task, such as missing files.
    """
    # All checks report into one list, so that a submit shows every error at the same time.
    found = drafts(source, name, faults)
    names = dict.fromkeys(draft.name for draft in found)
    validated = _validate(found, names, source, faults)
    waits: dict[str, list[Edge]] = {}
    for edge in edges(source, found, validated.conditions, validated.placeholders, faults):
        waits.setdefault(edge.task, []).append(edge)
    faults.extend(_deduplicated(found[: len(validated.wrong)], validated.wrong))
    if not faults:  # with other errors, even the task types may be wrong
        faults.extend(_valueless(found, validated))
    wrong = bool(faults)
    if check is not None:
        faults.extend(_checked(found, validated, check))
    if wrong:
        return ()
    return tuple(
        _node(draft, spec, validated.conditions.get(draft.name), names, waits.get(draft.name, []))
        for draft, spec in zip(found, validated.specs, strict=True)
    )


def _checked(found: Sequence[Draft], validated: _Validated, check: TaskCheck) -> list[Fault]:
    """Return the errors of `check`; each names its task."""
    specs = [*validated.specs, *[None] * (len(found) - len(validated.specs))]
    wrong = [
        [
            fault_at(below_path(SPEC, pointer), message, draft.source, hint=hint)
            for pointer, message, hint in check(draft.source.data["spec"], spec)
        ]
        for draft, spec in zip(found, specs, strict=True)
    ]
    return _deduplicated(found, wrong, named=len(found) > 1)


def _valueless(found: Sequence[Draft], validated: _Validated) -> list[Fault]:
    """Find references that can never have a value."""
    specs = {draft.name: draft.source.data["spec"] for draft in found}
    known: dict[Reference, tuple[str, str] | None] = {}  # many tasks may refer to the same value
    errors: list[Fault] = []
    for draft in found:
        decides = validated.conditions.get(draft.name)
        if decides is not None and decides.node in specs:
            wrong = result_keys.fault_of(decides.reference, specs[decides.node])
            if wrong is not None:
                errors.append(fault_at((*SPEC, "condition", "field"), wrong[0], draft.source, hint=wrong[1]))
        for each in validated.placeholders.get(draft.name, ()):
            if not isinstance(each.piece, Reference) or each.piece.node not in specs:
                continue
            upstream = specs[each.piece.node]
            if each.piece not in known:
                known[each.piece] = result_keys.fault_of(each.piece, upstream)
            wrong = known[each.piece] or result_keys.misplaced(each.where, each.piece, each.before, upstream)
            if wrong is not None:
                errors.append(fault_at((*SPEC, *each.where), wrong[0], draft.source, hint=wrong[1]))
            if len(errors) == MAX_FAULTS:
                return errors
    return errors or _type_mismatches(found, validated, specs)


def _type_mismatches(found: Sequence[Draft], validated: _Validated, specs: Mapping[str, Any]) -> list[Fault]:
    """Find references whose value will have the wrong type for its key."""
    errors: list[Fault] = []
    seen: set[Any] = set()
    for draft in found:
        placeholders = validated.placeholders.get(draft.name, ())
        examples = {
            each.where: example
            for each in placeholders
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
        read_spec(tried, faults, _unknown([each for each in placeholders if each.where not in examples]))
        texts = {each.where: each.piece.text for each in placeholders if isinstance(each.piece, Reference)}
        for fault in faults:
            where = next(
                (each for each in examples if fault_at((*SPEC, *each), "", draft.source).path == fault.path), None
            )
            if where is not None and fault.message.startswith(_TYPES):
                must = fault.message.partition(", not ")[0]
                message = f"{texts[where]} is {_NAMED[type(examples[where])]}, but this {must}"
                errors.append(replace(fault, message=message, hint="refer to another key"))
        if len(errors) >= MAX_FAULTS:
            break
    return errors


def _with(data: Any, values: Mapping[Path, Any], at: Path = ()) -> Any:
    """Return data with values replaced at some paths."""
    if at in values:
        return values[at]
    if isinstance(data, Mapping):
        return {key: _with(value, values, (*at, key)) for key, value in data.items()}
    if isinstance(data, list):
        return [_with(value, values, (*at, index)) for index, value in enumerate(data)]
    return data


@dataclass(slots=True)
class _Validated:
    """Specs, errors, conditions and placeholders of the tasks, in order."""

    specs: list[TaskSpec | None] = field(default_factory=list)
    wrong: list[list[Fault]] = field(default_factory=list)
    conditions: dict[str, ConditionSpec] = field(default_factory=dict)
    placeholders: dict[str, list[PlaceholderMatch]] = field(default_factory=dict)


def _validate(found: Sequence[Draft], names: Collection[str], source: Source, faults: list[Fault]) -> _Validated:
    """Validate each task separately, until there are too many errors."""
    validated, left, count = _Validated(), MAX_PLACEHOLDERS, 0
    room = SizeBudget(MAX_MERGED_CHARACTERS, MAX_MERGED_VALUES, "a workflow")
    different: set[Fault] = set()
    for draft in found:
        mine: list[Fault] = []
        # One more than allowed is read, to detect an excess without reading all.
        placeholders = list(islice(find(draft.source.data["spec"], names), left + 1))
        left -= len(placeholders)
        if left < 0:
            faults.append(_too_many(draft, placeholders[-1]))
            break
        validated.specs.append(_spec(draft, placeholders, mine, room))
        condition = _condition(draft, source, mine)
        if condition is not None:
            validated.conditions[draft.name] = condition
        validated.placeholders.setdefault(draft.name, placeholders)
        validated.wrong.append(mine)
        count += len(mine)
        different.update(mine)
        if draft is not found[-1] and (count >= _MAX_ERRORS or len(different) >= MAX_FAULTS):
            faults.append(more(0, fault_at(draft.at, "", source)))
            break
    return validated


def _too_many(draft: Draft, last: PlaceholderMatch) -> Fault:
    message = f"the tasks have more than {MAX_PLACEHOLDERS:,} placeholders, including shared ones per task"
    return fault_at((*SPEC, *last.where), message, draft.source, hint=SIZE_HINT)


def _spec(
    draft: Draft, placeholders: Sequence[PlaceholderMatch], faults: list[Fault], room: SizeBudget
) -> TaskSpec | None:
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
        # Without references, the template can be expanded now.
        try:
            data = draft.source.data["spec"] = resolve(data, {}, room)
        except ReferenceFault as error:
            where = (*SPEC, "data", "template")
            faults.append(fault_at(where, error.message.partition(": ")[2], draft.source, hint=error.hint))
            return None
        return read_spec(draft.source, faults)
    return spec


def _unknown(placeholders: Sequence[PlaceholderMatch]) -> Unknown:
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
        # In that format, a task with an unmet condition counts as completed.
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
    internal = tuple(name for name in first if name in names and name != draft.name)
    inside = set(internal)
    others = tuple(name for name in first if name not in inside)
    strangers = tuple(first[name] for name in others)
    return TaskNode(draft.name, spec, draft.source.data["spec"], internal, others, condition, strangers, draft.source)


def _deduplicated(found: Sequence[Draft], wrong: Sequence[Sequence[Fault]], *, named: bool = False) -> list[Fault]:
    """Return each error once; an error in shared keys that affects only some tasks, or with `named`, lists them."""
    tasks: dict[Fault, list[str]] = {}
    for draft, faults in zip(found, wrong, strict=True):
        for fault in faults:
            tasks.setdefault(fault, []).append(draft.name)
    errors = []
    for fault, names in tasks.items():
        own = not named and (fault.path.startswith(("spec.stages", "spec.graph")) or len(names) == len(found))
        others = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
        where = f"{', '.join(map(cut, names[:_MAX_SHOWN]))}{others}"
        errors.append(fault if own else replace(fault, message=f"{fault.message} (in {where})"))
    return errors
