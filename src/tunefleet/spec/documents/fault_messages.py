"""pydantic's errors → readable messages with line, column and the nearest known key."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails, ValidationError

from tunefleet.errors import Fault
from tunefleet.spec.base import Block, known_keys
from tunefleet.spec.descriptions import descriptions
from tunefleet.spec.documents.refused_keys import ELSEWHERE, INSTEAD, REFUSED, SYNONYMS, Refusal
from tunefleet.spec.syntax_errors import missing_space
from tunefleet.spec.tasks.task_types import TASK_KINDS
from tunefleet.spec.text import Path, Source, dotted
from tunefleet.spec.value_preview import MAX_FAULTS, more, nearest
from tunefleet.validation_errors import UNKNOWN_KEY, cut, message

SPEC_KEY: Final = "spec"
_INDEX_DIGITS: Final = 10
_NO_TEXT: Final = frozenset({"dict_type", "list_type", "model_attributes_type", "model_type", "tuple_type"})


_LIST_TYPES: Final = frozenset({"list_type", "tuple_type"})
_NUMBER_TYPES: Final = frozenset({"float_parsing", "float_type", "int_parsing", "int_type"})
_SECONDS: Final = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_WITH_UNIT: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?(%|[kK]|s|sec|m|min|h|d)")


@dataclass(frozen=True, slots=True)
class Unknown:
    """Referenced values, which are known only when the upstream tasks have ended.

    Args:
        alone: Paths of values that are a single reference and may have any type.
        inside: Paths of strings that contain a reference and may become any string, including a number.
    """

    alone: frozenset[Path] = frozenset()
    inside: frozenset[Path] = frozenset()

    def covers(self, path: Path, *, block: bool = False) -> bool:
        """Whether an error is about such a value.

        Args:
            path: Path of the error.
            block: Whether the error is that a string is used where a mapping or a list is required.
        """
        if not (self.alone or self.inside):
            return False
        above = [path[:length] for length in range(len(path) + 1)]
        return any(each in self.alone or (each in self.inside and not block) for each in above)


def explain(
    error: ValidationError, root: type[BaseModel], source: Source, prefix: Path = (), unknown: Unknown | None = None
) -> list[Fault]:
    """Convert a validation error.

    Args:
        error: What pydantic raised.
        root: The model that was validated.
        source: The source with the positions.
        prefix: Path of the validated part in the document.
        unknown: Values that are not known yet; errors about them are skipped.

    Returns:
        Errors in no particular order; a missing key is skipped if its misspelling is reported.
    """
    faults: list[Fault] = []
    guessed: set[Path] = set()
    missing: list[tuple[Path, Fault]] = []
    details = error.errors(include_url=False)
    # Explaining an error includes a search for similar keys, so their number is limited.
    if len(details) > MAX_FAULTS:
        path = prefix + tuple(details[MAX_FAULTS]["loc"])
        faults.append(more(len(details) - MAX_FAULTS, fault_at(path, "", source), path=dotted(prefix)))
    unknown = unknown or Unknown()
    for detail in details[:MAX_FAULTS]:
        path = prefix + tuple(detail["loc"])
        # The value of a reference is unknown, but its key is not: unknown keys are always reported.
        about = path[:-1] if detail["type"] == "extra_forbidden" else path
        if unknown.covers(about, block=detail["type"] in _NO_TEXT) or _only_its_entries(detail):
            continue
        if detail["type"] == "extra_forbidden":
            fault, guess = _unknown(path, root, source, prefix, detail["input"])
            faults.append(fault)
            if guess:
                guessed.add((*path[:-1], guess))
        elif detail["type"] == "missing":
            null = source.origin(path) in source.values
            text = "is required and must not be null" if null else "is required"
            missing.append((path, fault_at(path, text, source, hint=_about(root, path[len(prefix) :]))))
        elif detail["type"] == "tunefleet":
            faults.extend(_own(detail, path, source, unknown))
        else:
            faults.append(fault_at(path, message(detail), source, hint=_hint(detail)))
    return faults + [fault for path, fault in missing if path not in guessed]


def _only_its_entries(detail: ErrorDetails) -> bool:
    """Whether a list only counts as too short because of invalid entries, which are reported separately."""
    return detail["type"] == "too_short" and len(detail["input"]) >= detail.get("ctx", {})["min_length"]


def fault_at(path: Path, text: str, source: Source, *, hint: str | None = None, key: bool = False) -> Fault:
    """Create an error at the position of a path."""
    mark = source.mark(path, key=key)
    return Fault(dotted(source.origin(path)), text, mark.line, mark.column, hint)


def below_path(path: Path, below: str) -> Path:
    """Return a path extended by a dotted path; list indexes become integers."""
    return path + tuple(
        int(part) if part.isdecimal() and len(part) < _INDEX_DIGITS else part for part in below.split(".") if below
    )


def _own(detail: ErrorDetails, path: Path, source: Source, unknown: Unknown) -> Iterator[Fault]:
    for below, text, hint in detail.get("ctx", {})["faults"]:
        where = below_path(path, below)
        if not unknown.covers(where[:-1] if text == UNKNOWN_KEY else where):
            yield fault_at(where, text, source, hint=hint)


def _hint(detail: ErrorDetails) -> str | None:
    kind, value = detail["type"], detail["input"]
    key = str(detail["loc"][-1]) if detail["loc"] else ""
    if kind == "literal_error" and isinstance(value, str):
        words = [word.strip("'") for word in detail["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        guess = nearest(value, words)
        return f"did you mean {guess}?" if guess else None
    if kind == "too_short":
        return "add one, or remove the key"
    if kind in _NO_TEXT and isinstance(value, str) and (meant := missing_space(value)) is not None:
        return f"write a space after the colon: `{meant}`"
    if kind in _LIST_TYPES and isinstance(value, Mapping):
        return "start each entry with `- `"
    if kind in _NO_TEXT and key == "gpu" and isinstance(value, int | str):
        return f"set gpu: {{count: {value}}}" if isinstance(value, int) else f"set gpu: {{type: {cut(value)}}}"
    if kind in _NO_TEXT - _LIST_TYPES:
        return "write it as `key: value` lines"
    if kind in _NUMBER_TYPES and isinstance(value, str):
        return _as_number(value, key)
    return "write it in quotes" if kind == "string_type" and isinstance(value, int | float) else None


def _as_number(text: str, key: str) -> str | None:
    """Return a hint for a number with a unit."""
    found = _WITH_UNIT.fullmatch(text.strip())
    if found is None:
        return None
    value, unit = float(found[1]), found[2]
    if unit == "%":
        return f"write {value / 100:g}"
    if unit in {"k", "K"}:
        return f"write {value * 1000:g}"
    return f"write the seconds: {value * _SECONDS[unit]:g}" if key.endswith("_s") else None


def _unknown(
    path: Path, root: type[BaseModel], source: Source, prefix: Path, value: object
) -> tuple[Fault, str | None]:
    """Create the error for an unknown key; also return the key that was probably meant."""
    name = str(path[-1])
    below = path[len(prefix) :]
    block = block_at(root, below[:-1])
    known = known_keys(block) if block else set()
    # A synonym is only suggested where the block has the key.
    synonym = SYNONYMS.get(name) if SYNONYMS.get(name) in known else None
    refusal = refusal_of(below) if prefix == ("spec",) and synonym is None else None
    if refusal is not None:
        return fault_at(path, refusal.reason, source, hint=refusal.instead, key=True), None
    guess = synonym or (_nearest_key(name, block) if block else None)
    hint = f"did you mean {guess}?" if guess else _elsewhere(name, root, prefix)
    # `{modules: a,b}` is `{modules: a, b: null}`.
    at, around = source.mark(path, key=True), source.mark(path[:-1])
    if hint is None and value is None and at.line == around.line and at.column > around.column:
        hint = "it has no value: put a value with commas in quotes, or a list in [ ]"
    if hint is None and known:
        hint = f"known keys: {', '.join(sorted(known))}"
    return fault_at(path, UNKNOWN_KEY, source, hint=hint, key=True), guess


@lru_cache(maxsize=1024)
def _nearest_key(name: str, block: type[BaseModel]) -> str | None:
    # Cached: an unknown shared key is reported for each task of a workflow.
    return nearest(name, known_keys(block))


def refusal_of(path: Path) -> Refusal | None:
    """Return why a path below `spec` is rejected by name: for all task types, or as a key of another one."""
    words = tuple(str(part) for part in path if not isinstance(part, int))
    name = ".".join(words)
    if name in REFUSED:
        return REFUSED[name]
    owners = [kind for kind, root in TASK_KINDS.items() if _takes(root, words)]
    if not owners:
        return None
    several = f"{', '.join(owners[:-1])} and {owners[-1]}" if len(owners) > 1 else owners[0]
    return Refusal(f"is only for {several} tasks", INSTEAD.get(name, "remove it"))


def _takes(root: type[BaseModel], words: Sequence[str]) -> bool:
    block = block_at(root, words[:-1])
    return block is not None and words[-1] in known_keys(block)


@lru_cache(maxsize=1024)
def _elsewhere(name: str, root: type[BaseModel], prefix: Path) -> str | None:
    """Return a hint for a key in the wrong block."""
    if not prefix and "spec" in known_keys(root):  # the top level of a workflow file
        kinds = TASK_KINDS.values()
        return f"indent it below {SPEC_KEY}" if any(name in known_keys(kind) for kind in kinds) else None
    if name in ELSEWHERE and prefix == (SPEC_KEY,) and _takes(root, ELSEWHERE[name].split(".")):
        return f"it belongs to {SPEC_KEY}.{ELSEWHERE[name]}"
    # The outermost block that has it: an inner one is less likely meant.
    places = sorted(walk_blocks(root), key=lambda place: len(place[0]))
    for path, block in places:
        if name in known_keys(block):
            return f"it belongs to {dotted((*prefix, *path, name))}"
    other = SYNONYMS.get(name)
    meant = [path for path, block in places if other in known_keys(block)]
    return f"it belongs to {dotted((*prefix, *meant[0], other))}" if other and len(meant) == 1 else None


def _about(root: type[BaseModel], path: Path) -> str | None:
    block = block_at(root, path[:-1])
    for name, field in block.model_fields.items() if block else ():
        if block is not None and (field.alias or name) == path[-1] and (text := descriptions(block).get(name)):
            return " ".join(text.split()).rstrip(".")
    return None


def block_at(root: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the block at a path below a block."""
    block: type[BaseModel] | None = root
    for part in path:
        if isinstance(part, int):
            continue
        if block is None:
            return None
        fields = {field.alias or name: field for name, field in block.model_fields.items()}
        block = next(_blocks_in(fields[part].annotation), None) if part in fields else None
    return block


def walk_blocks(
    root: type[BaseModel], path: Path = (), within: tuple[type[BaseModel], ...] = ()
) -> Iterator[tuple[Path, type[BaseModel]]]:
    """Yield every block below a block with its path, outermost first; recursive blocks once.

    Args:
        within: The enclosing blocks.
    """
    yield path, root
    for name, field in root.model_fields.items():
        for block in _blocks_in(field.annotation):
            if block is not root and block not in within:
                yield from walk_blocks(block, (*path, field.alias or name), (*within, root))


def _blocks_in(annotation: Any) -> Iterator[type[BaseModel]]:
    # `inspect.isclass` is also true for generic aliases such as `tuple[int, ...]`.
    if inspect.isclass(annotation) and not get_args(annotation) and issubclass(annotation, Block):
        yield annotation
        return
    for inner in get_args(annotation):
        yield from _blocks_in(inner)
