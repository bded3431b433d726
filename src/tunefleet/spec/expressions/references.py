"""References between the tasks of a pipeline: find them in a spec, and replace them by their values.

A spec is plain data here, as written. Results are passed in as stored envelopes; this module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tunefleet.errors import InputError, ReferenceFault
from tunefleet.spec.expressions import graph_template
from tunefleet.spec.expressions.lookup import Envelopes, look_up, text_within
from tunefleet.spec.expressions.placeholders import (
    Escape,
    Piece,
    Reference,
    Secret,
    Stray,
    escape,
    path_hint,
    pieces,
    reference,
    whole,
)
from tunefleet.spec.expressions.size_limits import SizeBudget
from tunefleet.spec.text import Path, dotted
from tunefleet.validation_errors import show

# Strings of a spec in which nothing is replaced: `${` may be part of the code.
_VERBATIM: Final[frozenset[Path]] = frozenset({("code",)})


@dataclass(frozen=True, slots=True)
class PlaceholderMatch:
    """A placeholder in a spec.

    Args:
        where: Path below `spec`.
        piece: The placeholder.
        alone: Whether it is the whole value, which then gets the type of the referenced value.
        before: The text before it in the value, up to the previous placeholder.
    """

    where: Path
    piece: Reference | Secret | Stray
    alone: bool
    before: str = ""


def find(spec: Any, names: Collection[str] = ()) -> Iterator[PlaceholderMatch]:
    """Yield every placeholder of a spec: in strings, as `{node, path}` in items, in template columns.

    Args:
        spec: The mapping below `spec`, as written.
        names: Names of the other tasks.
    """
    for where, text in texts_with("${", spec):
        alone = whole(text, names) is not None
        # The text before a placeholder decides whether a URL prefix is present (see `result_keys`).
        before = ""
        for piece in pieces(text, names):
            if isinstance(piece, Reference | Secret | Stray):
                yield PlaceholderMatch(where, piece, alone, before.lstrip())
            before = piece if isinstance(piece, str) else "${"
    # Mappings `{node, path}` contain no `${`, so the search above misses them.
    for index, entry in _entries(spec, names):
        if isinstance(spec["data"]["items"][index], Mapping):  # strings were covered above
            yield PlaceholderMatch(("data", "items", index), entry, alone=True)
    for where, column in graph_template.columns(spec):
        named = graph_template.named_by(column, names)
        if named is not None:
            yield PlaceholderMatch((*where, "node" if "node" in column else "expr"), named, alone=False)


# Dotted path below `spec` → reference.
References = list[tuple[str, Reference]]


def references_of(spec: Any, names: Collection[str] = ()) -> References:
    """Return the references of a spec with their fields.

    Args:
        spec: The mapping below `spec`, as written.
        names: Names of the other tasks.
    """
    return [(dotted(each.where), each.piece) for each in find(spec, names) if isinstance(each.piece, Reference)]


def secrets_of(spec: Any) -> tuple[str, ...]:
    """Return the names of the secrets that a spec needs on its worker, sorted."""
    return tuple(sorted({each.piece.name for each in find(spec) if isinstance(each.piece, Secret)}))


def resolve(spec: Mapping[str, Any], envelopes: Envelopes, made: SizeBudget | None = None) -> dict[str, Any]:
    """Replace the references of a spec by their values.

    Args:
        spec: The mapping below `spec`, as written.
        envelopes: Name of each upstream task → its stored result.
        made: Counts the prompts of a template; default: the limit of one task.

    Returns:
        A new mapping for `load_task_spec`. A value that is a single reference gets the type of the referenced value;
        within a string, strings are inserted unchanged and other values as JSON. An entry of `data.items` that refers
        to a list expands to its entries. They keep their type in an echo task; for a model they become text, or chats
        if the task supports chats, and other values become JSON text. `graph_template` data becomes a list of prompts.
        `${secret:NAME}` is kept.

    Raises:
        ReferenceFault: If a reference has no value; names the field, the reference and the existing keys. If the
            results exceed the size limit of one task.
    """
    # A `${` from a result is escaped: a result must not be able to refer to a secret of the worker.
    names = envelopes.keys()
    room = SizeBudget()

    def replace(text: str) -> Any:
        found = whole(text, names)
        if isinstance(found, Reference):
            value = look_up(found, envelopes, room)
            room.take_value(found.text, value)
            return _escaped(value)
        return "".join(_embedded(piece, envelopes, room) for piece in pieces(text, names))

    named = dict(_entries(spec, names))
    resolved: dict[str, Any] = _map_texts(spec, replace, (), _VERBATIM | {("data", "items", at) for at in named})
    if named:
        keeps = partial(_keeps, spec.get("taskType"))
        resolved["data"]["items"] = _items(resolved["data"]["items"], named, envelopes, room, keeps)
    if graph_template.is_template(spec):
        graph_template.settle_system_prompt(resolved)
        resolved["data"] = _at(
            ("data", "template"), lambda: graph_template.to_list(resolved["data"], envelopes, room, made)
        )
    elif graph_template.is_template(resolved):
        raise ReferenceFault(
            "spec.data: a result cannot contain a graph_template.", hint="Write it in the workflow file."
        )
    return resolved


def _items(
    items: list[Any],
    named: Mapping[int, Reference | Stray],
    envelopes: Envelopes,
    room: SizeBudget,
    keeps: Callable[[Any], bool],
) -> list[Any]:
    """Return items with references replaced; a list expands to its entries."""
    made: list[Any] = []
    for index, item in enumerate(items):
        found = named.get(index)
        if found is None:
            made.append(item)
            continue
        made += _at(("data", "items", index), partial(_named, found, envelopes, room, keeps))
    return made


def fill_secrets(spec: Any, secrets: Callable[[str], str | None]) -> Any:
    """Replace the secrets of a resolved spec, and `$${` by `${`; done on the worker.

    Args:
        spec: Any part of a spec.
        secrets: Name → value, or `None` if this worker has no such secret.

    Returns:
        A copy that must not leave the executor.

    Raises:
        InputError: If a secret is missing.
    """

    def replace(text: str) -> str:
        return "".join(_revealed(piece, secrets) for piece in pieces(text))

    return _map_texts(spec, replace, ())


def _revealed(piece: Piece, secrets: Callable[[str], str | None]) -> str:
    match piece:
        case Secret(name):
            value = secrets(name)
            if value is None:
                raise InputError(
                    f"The task needs the secret {name}, which this worker does not have.",
                    hint=f"Set TUNEFLEET_SECRET_{name} on the worker.",
                )
            return value
        case _:
            return "${" if isinstance(piece, Escape) else _as_written(piece)


def _embedded(piece: Piece, envelopes: Envelopes, room: SizeBudget) -> str:
    if isinstance(piece, Reference):
        return escape(text_within(room, piece.text, look_up(piece, envelopes, room)))
    return "$${" if isinstance(piece, Escape) else _as_written(piece)


def _as_written(piece: Piece) -> str:
    match piece:
        case str():
            return piece
        case Secret(name):
            return f"${{secret:{name}}}"
        case Escape():
            return "$${"
        case _:
            return piece.text


def _escaped(value: Any) -> Any:
    # All strings, without exceptions: a result may contain a key like `code`, which is skipped in a spec.
    return _map_texts(value, escape, (), frozenset())


def _keeps(kind: Any, value: Any) -> bool:
    """Whether an item keeps its type; a mapping with `node` does not: a result must not refer to a task."""
    if kind == "echo":
        return not (isinstance(value, Mapping) and "node" in value)
    return kind == "inference" and _is_chat(value)


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, Mapping) and isinstance(each.get("role"), str) for each in value)
    )


def _named(found: Reference | Stray, envelopes: Envelopes, room: SizeBudget, keeps: Callable[[Any], bool]) -> list[Any]:
    if isinstance(found, Stray):
        raise ReferenceFault(f"{show(found.text)} {found.problem}.", hint=found.hint)
    value = look_up(found, envelopes, room)
    chat = _is_chat(value) and keeps(value)
    return [_item(found, each, room, keeps) for each in (value if isinstance(value, list) and not chat else [value])]


def _item(found: Reference, value: Any, room: SizeBudget, keeps: Callable[[Any], bool]) -> Any:
    if not keeps(value):
        return escape(text_within(room, found.text, value))
    room.take_value(found.text, value)
    return _escaped(value)


def _entries(spec: Any, names: Collection[str] = ()) -> Iterator[tuple[int, Reference | Stray]]:
    """Yield the references of entries of `data.items`: `{node, path}`, or a string with a single reference."""
    data = spec.get("data") if isinstance(spec, Mapping) else None
    items = data.get("items") if isinstance(data, Mapping) else None
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, str):
            if "${" in item and isinstance(alone := whole(item, names), Reference):
                yield index, alone
        elif isinstance(item, Mapping) and set(item) == {"node", "path"}:
            found = reference(str(item["node"]), str(item["path"]))
            yield index, found or Stray(str(item["path"]), "is not a path", path_hint(str(item["path"])))


def texts_with(mark: str, value: Any, where: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield the strings of a spec that contain a mark, with their paths, except a task's code.

    Args:
        value: The mapping below `spec`, or a part of it.
        where: Path of that part.
    """
    if where in _VERBATIM:
        return
    if isinstance(value, str):
        if mark in value:
            yield where, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from texts_with(mark, inner, (*where, key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from texts_with(mark, inner, (*where, index))


def _map_texts(value: Any, change: Callable[[str], Any], where: Path, verbatim: frozenset[Path] = _VERBATIM) -> Any:
    if where in verbatim:
        return value
    if isinstance(value, str):
        return _at(where, lambda: change(value)) if "${" in value else value
    if isinstance(value, Mapping):
        return {key: _map_texts(inner, change, (*where, key), verbatim) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(inner, change, (*where, index), verbatim) for index, inner in enumerate(value)]
    return value


def _at(where: Path, make: Callable[[], Any]) -> Any:
    """Create a value; an error gets the path of the value."""
    try:
        return make()
    except ReferenceFault as fault:
        field = dotted(("spec", *where))
        raise ReferenceFault(f"{field}: {fault.message}", hint=fault.hint) from None
