"""Dependencies between the tasks of a workflow: `dependsOn`, order of stages, conditions and references."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final, Literal

from tunefleet.errors import Fault
from tunefleet.spec.documents.fault_messages import fault_at
from tunefleet.spec.documents.stages import SPEC, Draft
from tunefleet.spec.expressions.lookup import ConditionSpec
from tunefleet.spec.expressions.placeholders import Reference
from tunefleet.spec.expressions.references import PlaceholderMatch
from tunefleet.spec.text import Path, Source
from tunefleet.spec.value_preview import MAX_FAULTS, more, nearest
from tunefleet.validation_errors import cut, show

TASK_ID_PREFIX: Final = "task-"
_MAX_SHOWN: Final = 8
_MAX_NAMES: Final = 200
# Suggestions and cycle searches take time for each error, so only the first ones get them.
_MAX_GUESSES: Final = 20
_MAX_CYCLES: Final = 20
_ONLY: Final = "it is the only task"
Why = Literal["dependsOn", "order", "condition", "reference"]


@dataclass(frozen=True, slots=True)
class Edge:
    """A dependency of a task, with its cause.

    Args:
        upstream: What it waits for: a task of the workflow, or the id of one submitted earlier.
        why: What causes the dependency.
        where: Its path in `source`.
        source: The source that `where` refers to.
        text: The reference as written.
    """

    task: str
    upstream: str
    why: Why
    where: Path
    source: Source
    text: str

    def fault(self, message: str, hint: str | None = None) -> Fault:
        """Create an error at the position of the edge."""
        return fault_at(self.where, message, self.source, hint=hint)


def edges(
    source: Source,
    drafts: Sequence[Draft],
    conditions: Mapping[str, ConditionSpec],
    placeholders: Mapping[str, Sequence[PlaceholderMatch]],
    faults: list[Fault],
) -> list[Edge]:
    """Return the dependencies of the tasks.

    Args:
        conditions: The valid conditions, by task.
        placeholders: The placeholders of each spec.
        faults: Receives unknown upstreams and cycles.

    Returns:
        Edges whose upstream is a task of the workflow or an id.
    """
    names = {draft.name: at for at, draft in enumerate(drafts)}
    found: list[Edge] = []
    wrong: list[Fault] = []
    for draft in _first_of_each_name(drafts):
        for edge in _of(draft, source, conditions.get(draft.name), placeholders.get(draft.name, ())):
            fault = _wrong(edge, names, guesses=len(wrong) < _MAX_GUESSES)
            if fault is None:
                found.append(edge)
            else:
                wrong.append(fault)
        # Thousands of tasks may refer to the same missing stage.
        if len(wrong) > MAX_FAULTS:
            wrong[MAX_FAULTS:] = [more(0, wrong[MAX_FAULTS])]
            break
    faults.extend([*wrong, *_cycles(found, names)])
    return found


def _first_of_each_name(drafts: Sequence[Draft]) -> list[Draft]:
    first: dict[str, Draft] = {}
    for draft in drafts:
        first.setdefault(draft.name, draft)
    return list(first.values())


def _of(
    draft: Draft, source: Source, condition: ConditionSpec | None, placeholders: Sequence[PlaceholderMatch]
) -> Iterator[Edge]:
    for name, where in draft.named:
        yield Edge(draft.name, name, "dependsOn", where, source, name)
    if draft.after is not None:
        yield Edge(draft.name, draft.after, "order", draft.at, source, draft.after)
    if condition is not None:
        where = (*SPEC, "condition", "node")
        yield Edge(draft.name, condition.node, "condition", where, draft.source, condition.node)
    yield from _inputs(draft)
    for each in placeholders:
        if isinstance(each.piece, Reference):
            yield Edge(
                draft.name, each.piece.node, "reference", (*SPEC, *each.where), draft.source, each.piece.text
            )  # fmt: skip


def _inputs(draft: Draft) -> Iterator[Edge]:
    """Yield the `inputs` of a `python` task; invalid entries are reported with the spec."""
    spec = draft.source.data[SPEC[0]] if isinstance(draft.source.data, Mapping) else None
    if not isinstance(spec, Mapping) or spec.get("taskType") != "python" or not isinstance(spec.get("inputs"), list):
        return
    for index, each in enumerate(spec["inputs"]):
        name = each.get("stage") if isinstance(each, Mapping) else each
        if isinstance(name, str):
            yield Edge(draft.name, name, "dependsOn", (*SPEC, "inputs", index), draft.source, name)


def _wrong(edge: Edge, names: Mapping[str, int], *, guesses: bool) -> Fault | None:
    alone = len(names) == 1 and edge.where[:2] not in {(*SPEC, "stages"), (*SPEC, "graph")}
    if edge.upstream == edge.task:
        if edge.why == "dependsOn" and alone:
            return None  # an id that is also the name of the only task
        return edge.fault(f"{cut(edge.task)} waits for itself", "name another task")
    # An id may belong to a task of an earlier submit.
    if edge.upstream in names or edge.upstream.startswith(TASK_ID_PREFIX):
        return None
    if edge.why == "dependsOn" and edge.where[:2] == (*SPEC, "dependsOn"):
        return None  # only the server knows whether a task with that id exists
    return _dangling(edge, names, guesses=guesses)


def _dangling(edge: Edge, names: Mapping[str, int], *, guesses: bool) -> Fault:
    others = names.keys() - {edge.task} if guesses and len(names) <= _MAX_NAMES else ()
    guess = nearest(edge.upstream, sorted(others, key=names.__getitem__)) if others else None
    shown = [name for name in islice(names, _MAX_SHOWN + 1) if name != edge.task][:_MAX_SHOWN]
    known = f"available: {', '.join(map(cut, shown))}{', …' if len(names) > len(shown) + 1 else ''}" if shown else _ONLY
    hint = f"did you mean {guess}?" if guess else f"{known}; ids of tasks submitted earlier start with {TASK_ID_PREFIX}"
    if "${" in edge.text and not guess:
        hint += "; write $${ for a literal ${"
    subject = f"{cut(edge.text)} refers to no task" if edge.why == "reference" else f"{show(edge.text)} is not a task"
    return edge.fault(f"{subject} of this workflow", hint)


def _cycles(found: Sequence[Edge], names: Mapping[str, int]) -> Iterator[Fault]:
    waits: dict[str, list[str]] = {name: [] for name in names}
    for edge in found:
        waits[edge.task].append(edge.upstream)
    for number, cycle in enumerate(cycles(waits, _MAX_CYCLES), 1):
        around = [*cycle, cycle[0]]
        steps = set(pairwise(around))
        inside = [edge for edge in found if (edge.task, edge.upstream) in steps]
        # Implicit edges from the order of stages always point backward; an edge that points forward is explicit.
        culprit = max(inside, key=lambda edge: (edge.why != "order", names[edge.upstream] - names[edge.task]))
        order = next((edge for edge in inside if edge.why == "order"), None)
        hint = (
            f"{order.task} follows {order.upstream} in the list; set `dependsOn: []` if it does not depend on it"
            if order
            else "remove one of these dependencies"
        )
        shown = (
            around
            if len(around) <= _MAX_SHOWN
            else [*around[: _MAX_SHOWN - 2], f"… ({len(cycle):,} tasks)", around[-1]]
        )
        fault = culprit.fault(f"these tasks depend on each other: {' → '.join(map(cut, shown))}", hint)
        yield fault
        if number == _MAX_CYCLES:
            yield more(0, fault)


def cycles(waits: Mapping[str, Collection[str]], most: int | None = None) -> list[list[str]]:
    """Find dependency cycles.

    Args:
        waits: Task → the tasks that it waits for. Names without an entry wait for nothing.
        most: Maximum number of cycles; each search covers all remaining tasks.

    Returns:
        Disjoint cycles, each in the order of waiting: the first task waits for the second, the last for the
        first. A task that waits for itself is a cycle of one. Empty if and only if the graph is acyclic.
    """
    left = {name: [each for each in found if each in waits] for name, found in waits.items()}
    found: list[list[str]] = []
    while (most is None or len(found) < most) and (left := _without_ends(left)):
        found.append(_cycle(left))
        left = {name: above for name, above in left.items() if name not in found[-1]}
    return found


def layers(waits: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Sort tasks into layers: each is in the layer after its last dependency.

    Args:
        waits: Task → the tasks that it waits for, without cycles.
    """
    depth: dict[str, int] = {}
    rest = {name: [each for each in above if each in waits] for name, above in waits.items()}
    while rest:
        ready = [name for name, above in rest.items() if all(each in depth for each in above)]
        if not ready:
            raise ValueError("tasks that wait for each other have no layers")
        for name in ready:
            depth[name] = max((depth[each] + 1 for each in rest.pop(name)), default=0)
    return [[name for name in waits if depth[name] == at] for at in range(max(depth.values(), default=-1) + 1)]


def _without_ends(waits: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Repeatedly remove tasks without remaining dependencies (Kahn's algorithm)."""
    count = {name: sum(each in waits for each in set(above)) for name, above in waits.items()}
    below: dict[str, list[str]] = {name: [] for name in waits}
    for name, above in waits.items():
        for each in set(above) & waits.keys():
            below[each].append(name)
    free = [name for name, number in count.items() if number == 0]
    while free:
        for each in below[free.pop()]:
            count[each] -= 1
            if count[each] == 0:
                free.append(each)
    return {name: above for name, above in waits.items() if count[name] > 0}


def _cycle(waits: Mapping[str, list[str]]) -> list[str]:
    """Follow dependencies until a task repeats."""
    # Terminates: every remaining task waits for another remaining one.
    name = next(iter(waits))
    walked: dict[str, None] = {}
    while name not in walked:
        walked[name] = None
        name = next(each for each in waits[name] if each in waits)
    names = list(walked)
    return names[names.index(name) :]
