"""`spec.stages` and `spec.graph`: one workflow file → the specs of its tasks, with positions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from tunefleet.errors import Fault
from tunefleet.spec.base import Block, Text, as_list, known_keys, wrong
from tunefleet.spec.documents.fault_messages import explain, fault_at
from tunefleet.spec.documents.typed import nearest_kind, task_kinds
from tunefleet.spec.expressions.size_limits import MAX_MERGED_VALUES, SIZE_HINT, Scale, Size
from tunefleet.spec.text import Path, Source
from tunefleet.validation_errors import UNKNOWN_KEY, show

_MAX_NAME: Final = 200
# These characters have a meaning in references, paths or YAML.
_NOT_IN_NAMES: Final = "${}[]#:/\\"
# Keys of a spec that control whether and when the task runs; not part of the task's own model.
TASK_LEVEL: Final = ("dependsOn", "condition")
_NOT_SHARED: Final = ("stages", "graph")
SPEC: Path = ("spec",)
# Mappings whose `type` determines their keys: with another type, a stage inherits none of the shared keys.
_TYPED: Final = frozenset({(*SPEC, "data"), (*SPEC, "output", "destination"), (*SPEC, "checkpoint", "load")})


def task_name(value: str) -> str:
    """Validate the name of a task."""
    name = value.strip()
    invalid = name in {"", ".", ".."} or len(name) > _MAX_NAME or not name.isprintable()
    if invalid or any(each in name for each in _NOT_IN_NAMES):
        raise wrong(f"must be one line of 1 to {_MAX_NAME} characters without any of {' '.join(_NOT_IN_NAMES)}")
    return name


NodeName = Annotated[str, AfterValidator(task_name)]
Names = Annotated[tuple[Text, ...], BeforeValidator(as_list)]


class NodeSpec(Block):
    """`stages[]` and `graph.nodes[]`: one task of a pipeline."""

    name: NodeName | None = None
    """Name that other tasks refer to; default: `stage-1`, `stage-2`, … or `node-1`, `node-2`, …"""
    id: NodeName | None = None
    """Alias of `name`."""
    depends_on: Names | None = Field(default=None, alias="dependsOn")
    """Names of tasks in this workflow, or ids of tasks submitted earlier, that must complete first. Default: a stage
    depends on the previous one in the list, a node on nothing; `[]` means no dependency."""
    spec: dict[str, Any] = Field(default_factory=dict)
    """Spec of the task, merged with the keys next to `stages` or `graph`: mappings are merged, other values
    replaced."""


class GraphSpec(Block):
    """`spec.graph`: tasks with explicit dependencies, in any order."""

    nodes: Annotated[tuple[NodeSpec, ...], Field(min_length=1)]
    """The tasks."""


class PipelineSpec(Block):
    """Keys of a `spec` in addition to those of a task; `stages` and `graph` are mutually exclusive."""

    stages: Annotated[tuple[NodeSpec, ...], Field(min_length=1)] | None = None
    """Tasks that run in sequence, unless they set `dependsOn`."""
    graph: GraphSpec | None = None
    """Tasks that run in the order of their `dependsOn`."""
    depends_on: Names = Field(default=(), alias="dependsOn")
    """Ids of tasks submitted earlier that must complete first; in a stage also names of tasks in this workflow."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A task before validation, from which a `TaskNode` is built.

    Args:
        source: `{"spec": …}`, merged, without `dependsOn` and `condition`.
        at: Path of the task in the document.
        named: Entries of its `dependsOn`, with their paths.
        after: The previous stage in the list, if the task depends on it implicitly.
    """

    name: str
    source: Source
    at: Path
    named: tuple[tuple[str, Path], ...] = ()
    after: str | None = None
    condition: Any = None


def drafts(source: Source, name: str, faults: list[Fault]) -> list[Draft]:
    """Return the tasks of a workflow, as far as they can be parsed.

    Args:
        name: Name of the task if it is the only one.
        faults: Receives errors in the pipeline's own keys.
    """
    spec = source.data.get("spec") if isinstance(source.data, dict) else None
    if not isinstance(spec, dict):
        return []
    _check(source, spec, faults)
    if spec.get("stages") is None and spec.get("graph") is None:
        return [_single(source, spec, name)]
    nodes, at, word = _listed(spec)
    base = _shared(spec)
    if isinstance(nodes, list) and len(nodes) > MAX_TASKS:
        message = f"has {len(nodes):,} entries; a workflow has at most {MAX_TASKS:,} tasks"
        faults.append(fault_at(at, message, source, hint="submit them in several workflows"))
        return []
    found = _nodes(source, base, nodes if isinstance(nodes, list) else (), at, word, faults)
    if found is None:
        return []
    if not found:  # already reported; the shared keys are still validated, if their task type is known
        return [_single(source, spec, name)] if "taskType" in spec else []
    _check_names(source, found, faults)
    return _without_foreign_blocks(found, base)


def _nodes(
    source: Source, base: Mapping[str, Any], nodes: Sequence[Any], at: Path, word: str, faults: list[Fault]
) -> list[Draft] | None:
    """Merge each task with the shared keys; `None` if the result is too large."""
    found: list[Draft] = []
    # Shared values count once per task, since each task stores a merged copy.
    scale, size = Scale(base), Size()
    for index, node in enumerate(nodes):
        if not isinstance(node, dict):
            continue
        before = found[-1].name if found and word == "stage" else None
        found.append(_node(source, base, node, (*at, index), f"{word}-{index + 1}", before))
        size += scale.weigh(found[-1].source.data["spec"])
        # Checked while merging, before memory is used for all tasks.
        if size.too_much is not None:
            faults.append(_too_much(source, base, scale, len(nodes), size))
            return None
    for each in found:
        _check_nested(source, each.at, faults)
    return found


def _too_much(source: Source, base: Mapping[str, Any], scale: Scale, count: int, size: Size) -> Fault:
    by_values = size.values > MAX_MERGED_VALUES
    largest = max(base, key=lambda key: scale.weigh(base[key])[0 if by_values else 1], default="")
    shared = f"{scale.shared.values:,} shared values" if by_values else f"{scale.shared.characters:,} shared characters"
    message = f"{count:,} tasks × {shared}, plus their own keys, are {size.too_much}"
    return fault_at((*SPEC, largest) if largest else SPEC, message, source, hint=SIZE_HINT, key=True)


def _check_nested(source: Source, at: Path, faults: list[Fault]) -> None:
    own = source_value(source, at).get("spec")
    for key in _NOT_SHARED if isinstance(own, dict) else ():
        if key in own:
            hint = f"list all tasks in the top-level {at[1]}, and set their order with dependsOn"
            faults.append(fault_at((*at, "spec", key), "cannot be nested in a task", source, hint=hint, key=True))


def _shared(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in _NOT_SHARED}


def _single(source: Source, spec: Mapping[str, Any], name: str) -> Draft:
    shared = _shared(spec)
    return _draft(name, source.part({"spec": shared}, {}), SPEC, shared)


def _check(source: Source, spec: dict[str, Any], faults: list[Fault]) -> None:
    own = {key: spec[key] for key in (*_NOT_SHARED, "dependsOn") if key in spec}
    try:
        PipelineSpec.model_validate(own, by_alias=True, by_name=False)
    except ValidationError as error:
        faults.extend(_directed(fault) for fault in explain(error, PipelineSpec, source, SPEC))
    if spec.get("stages") is not None and spec.get("graph") is not None:
        later = max(_NOT_SHARED, key=lambda key: (source.mark((*SPEC, key)).line, source.mark((*SPEC, key)).column))
        other = "stages" if later == "graph" else "graph"
        message = f"cannot be combined with {other}"
        faults.append(fault_at((*SPEC, later), message, source, hint="remove one of them", key=True))


def _directed(fault: Fault) -> Fault:
    """Add a hint to an error about a task's key next to `name`."""
    where, _, key = fault.path.rpartition(".")
    if UNKNOWN_KEY not in fault.message or where == "spec.graph" or not _is_task_key(key):
        return fault
    return replace(
        fault, hint=f"move it to the `spec` of that {'stage' if where.startswith('spec.stages') else 'node'}"
    )


def _is_task_key(key: str) -> bool:
    return key in TASK_LEVEL or any(key in known_keys(kind) for kind in task_kinds().values())


def _listed(spec: Mapping[str, Any]) -> tuple[Any, Path, str]:
    if spec.get("stages") is not None:
        return spec["stages"], (*SPEC, "stages"), "stage"
    graph = spec["graph"]
    return graph.get("nodes") if isinstance(graph, dict) else None, (*SPEC, "graph", "nodes"), "node"


def _node(
    source: Source, base: Mapping[str, Any], node: dict[str, Any], at: Path, default: str, before: str | None
) -> Draft:
    given = node.get("name") or node.get("id")
    name = given.strip() if isinstance(given, str) and given.strip() else default
    own = node.get("spec")
    own = _shared(own) if isinstance(own, dict) else {}
    merged = merged_source(source, base, own, (*at, "spec"))
    listed = node.get("dependsOn")
    made = _draft(name, merged, at, merged.data["spec"])
    if listed is None and own.get("dependsOn") is None:
        return replace(made, after=before)
    return replace(made, named=made.named + _names(listed, (*at, "dependsOn")))


def _draft(name: str, merged: Source, at: Path, spec: dict[str, Any]) -> Draft:
    bare = merged.part({"spec": {key: value for key, value in spec.items() if key not in TASK_LEVEL}}, merged.origins)
    named = _names(spec.get("dependsOn"), merged.origin((*SPEC, "dependsOn")))
    return Draft(name, bare, at, named, condition=spec.get("condition"))


def _names(listed: Any, at: Path) -> tuple[tuple[str, Path], ...]:
    if isinstance(listed, str):
        return ((listed.strip(), at),)
    entries = enumerate(listed if isinstance(listed, list) else ())
    return tuple((each.strip(), (*at, index)) for index, each in entries if isinstance(each, str))


def _check_names(source: Source, found: Collection[Draft], faults: list[Fault]) -> None:
    first: dict[str, Draft] = {}
    for each in found:
        one = first.setdefault(each.name, each)
        node = source_value(source, each.at)
        key = "name" if node.get("name") else "id"
        if one is not each:
            message = f"{show(each.name)} is already the name of the task in line {source.mark(one.at).line}"
            faults.append(fault_at((*each.at, key), message, source, hint="use a unique name"))
        if node.get("name") and node.get("id") and node["name"] != node["id"]:
            faults.append(fault_at((*each.at, "id"), "differs from name", source, hint="remove one of them"))


def source_value(source: Source, path: Path) -> Any:
    """Return the value at a path of a document."""
    value = source.data
    for part in path:
        value = value[part]
    return value


def _without_foreign_blocks(found: list[Draft], base: Mapping[str, Any]) -> list[Draft]:
    """Remove shared keys from tasks whose type does not support them, if another task's type does."""
    taken = [_keys_of(each) for each in found]
    everything: set[str] = set().union(*taken)
    result = []
    for each, keys in zip(found, taken, strict=True):
        spec, source = each.source.data["spec"], each.source
        foreign = {
            key for key in base if keys and key in everything - keys and source.origin((*SPEC, key)) == (*SPEC, key)
        }
        bare = {key: value for key, value in spec.items() if key not in foreign}
        result.append(replace(each, source=source.part({"spec": bare}, source.origins)))
    return result


def _keys_of(draft: Draft) -> set[str]:
    kind = nearest_kind(draft.source.data["spec"].get("taskType"))
    return known_keys(task_kinds()[kind]) if kind is not None else set()


# Limits of one workflow; the merged sizes count shared values once per task.
MAX_TASKS: Final = 5_000


def merged_source(source: Source, base: Mapping[str, Any], own: Mapping[str, Any], own_at: Path) -> Source:
    """Return the spec of one stage as if it were the only one.

    Args:
        base: The mapping below `spec` that all stages share.
        own: The stage's `spec`.
        own_at: Its path in the document.

    Returns:
        `{"spec": …}`; each value has the position where it was written, in the stage or in the shared keys.
    """
    merged, origins = _merge(base, SPEC, own, own_at, SPEC)
    return source.part({"spec": merged}, origins)


def _merge(
    base: Mapping[str, Any], base_at: Path, own: Mapping[str, Any], own_at: Path, at: Path
) -> tuple[dict[str, Any], dict[Path, Path]]:
    """Merge, and return the origins: outermost path in the result → path in the document."""
    merged: dict[str, Any] = {}
    origins = {at: own_at}
    if at in _TYPED and None not in (base.get("type"), own.get("type")) and base["type"] != own["type"]:
        return dict(own), origins
    # Mappings are merged recursively; any other value of the stage replaces the shared one.
    for key, value in base.items():
        override = own.get(key)
        if isinstance(value, Mapping) and isinstance(override, Mapping):
            merged[key], inner = _merge(value, (*base_at, key), override, (*own_at, key), (*at, key))
            origins |= inner
        elif key in own:
            merged[key] = override
        else:
            merged[key] = value
            origins[*at, key] = (*base_at, key)
    return merged | {key: value for key, value in own.items() if key not in base}, origins
