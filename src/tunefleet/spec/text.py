"""YAML or JSON text → plain data, with the line and column of every key and value.

YAML 1.2 core schema (`on` and `no` are strings, `5e-7` is a number, a date is a string), one document, no tags, no
duplicate keys. Knows nothing of what the data means.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tunefleet.errors import Fault, SpecError
from tunefleet.spec.syntax_errors import missing_space, syntax_fault
from tunefleet.spec.value_preview import MAX_FAULTS, more
from tunefleet.validation_errors import cut

try:
    from yaml import CSafeLoader as _BaseLoader
except ImportError:  # PyYAML without libyaml: slower, otherwise the same
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]

Path = tuple[str | int, ...]

_MAX_DEPTH: Final = 48
# Of one workflow file; larger data belongs in a separate file.
MAX_VALUES: Final = 100_000
_MAX_INTEGER_BITS: Final = 64
# The surrogate pair by which JSON escapes a character beyond U+FFFF, with the backslashes before it. Starts with a
# literal character, which is fast to search: `re` holds the GIL for the whole text.
HALVES: Final = re.compile(r"\\(?<!\\\\)((?:\\\\)*+)(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})")
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_DEPTH_HINT: Final = f"at most {_MAX_DEPTH} levels are allowed"
_SELF_HINT: Final = "copy the values, or refer to an anchor outside of the value"
_VALUES_HINT: Final = f"at most {MAX_VALUES:,} are allowed; move data to a separate file, or submit several workflows"
_NO_BREAK_SPACE: Final = "\u00a0"
_TAG: Final = "tag:yaml.org,2002:"


class _Loader(_BaseLoader):
    """PyYAML's safe loader with the YAML 1.2 core schema."""

    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 PyYAML's own shape


def _add_resolvers() -> None:
    for word, pattern, first in (
        ("null", _NULL, ["~", "n", "N", ""]),
        ("bool", _BOOL, list("tTfF")),
        ("int", _INT, list("-+0123456789")),
        ("float", _FLOAT, list("-+0123456789.")),
        ("merge", re.compile("<<"), ["<"]),
    ):
        _Loader.add_implicit_resolver(_TAG + word, re.compile(f"(?:{pattern.pattern})\\Z"), first)


_add_resolvers()


class Mark(NamedTuple):
    """A position in the text, counted from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Source:
    """Plain data with the position of each value.

    Args:
        data: Dictionaries, lists, strings, numbers, booleans and `None`.
        keys: Path → position of its key.
        values: Path → position of its value.
        origins: For data merged from parts of a document: path of a part → its path in the document.
    """

    data: Any = None
    keys: dict[Path, Mark] = field(default_factory=dict)
    values: dict[Path, Mark] = field(default_factory=dict)
    origins: dict[Path, Path] = field(default_factory=dict)

    def part(self, data: Any, origins: dict[Path, Path]) -> Source:
        """Return data merged from parts of this document, with positions resolved by `origins`."""
        return Source(data, self.keys, self.values, origins)

    def origin(self, path: Path) -> Path:
        """Return the path in the document."""
        for length in range(len(path), 0, -1) if self.origins else ():
            found = self.origins.get(path[:length])
            if found is not None:
                return found + path[length:]
        return path

    def mark(self, path: Path, *, key: bool = False) -> Mark:
        """Return the position of a value or its key, or of the nearest enclosing one that has a position."""
        path = self.origin(path)
        first, second = (self.keys, self.values) if key else (self.values, self.keys)
        while path:
            found = first.get(path) or second.get(path)
            if found is not None:
                return found
            path, first, second = path[:-1], self.keys, self.values
        return self.values.get((), Mark(1, 1))


def read_text(text: str, *, filename: str | None = None, faults: list[Fault] | None = None) -> Source:
    """Parse one YAML or JSON document.

    Args:
        filename: Its name, for messages.
        faults: Receives the errors of single keys and values, such as duplicate keys; without it they are raised.

    Raises:
        SpecError: If it is not one well-formed document; lists every error.
    """
    # JSON is a subset of YAML except for tabs and surrogate pairs, so one parser reads both.
    if text.lstrip().startswith("{"):
        # JSON may be indented with tabs, which YAML rejects; inside JSON strings tabs are always escaped.
        text = text.replace("\t", " ")
        # JSON escapes characters beyond U+FFFF as surrogate pairs, which YAML does not support.
        text = HALVES.sub(lambda found: found[1] + json.loads(f'"\\{found[2]}"'), text)
    reader = _Reader(text)
    single = False
    try:
        guard(text)
        node = yaml.compose(text, Loader=_Loader)
        reader.source.data = reader.read(node, ()) if node is not None else None
        single = True
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        reader.faults.append(syntax_fault(error, text, _Loader))
    except SpecError as error:
        reader.faults.extend(error.faults)
    if faults is not None and single:
        faults.extend(reader.faults)
    elif reader.faults:
        raise SpecError(reader.faults, filename=filename)
    return reader.source


def guard(text: str) -> None:
    """Reject a document that is nested too deeply or has too many values, before it is composed."""
    # libyaml's composer is recursive: deep nesting would overflow the C stack. Events are read iteratively.
    depth = nodes = 0
    for event in yaml.parse(text, Loader=_Loader):
        nodes += isinstance(event, yaml.NodeEvent)
        if nodes > 2 * MAX_VALUES:  # each value may have a key
            raise SpecError([Fault("", "the file has too many values", *_start(event), hint=_VALUES_HINT)])
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise SpecError([Fault("", "the file is nested too deeply", *_start(event), hint=_DEPTH_HINT)])
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _start(event: yaml.Event) -> Mark:
    mark = event.start_mark
    return Mark(mark.line + 1, mark.column + 1) if mark else Mark(1, 1)


class _Reader:
    """Walks a node tree; collects data, positions and errors."""

    def __init__(self, text: str) -> None:
        self.source = Source()
        self.faults: list[Fault] = []
        self._text = text
        self._left = MAX_VALUES
        # Aliases share the node of their anchor. Nodes that enclose the current one, outermost first, and those read.
        self._within: list[Node] = []
        self._done: set[int] = set()

    def read(self, node: Node, path: Path) -> Any:
        self._count(node, path)
        self.source.values[path] = _mark(node)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if any(each is node for each in self._within):
            message = f"refers to {self._anchor(node)}, whose value it is part of"
            raise SpecError([self._fault(node, path, message, _SELF_HINT)])
        self._within.append(node)
        value = self._collection(node, path)
        self._within.pop()
        self._done.add(id(node))
        return value

    def _collection(self, node: Node, path: Path) -> Any:
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if node.tag != _TAG + "seq":
            self._add_fault(node, path, _tagged(node))
        return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]

    def _count(self, node: Node, path: Path, values: int = 1, merges: int = 0) -> None:
        # Aliases and merges are expanded, so a short text can have a huge number of values ("billion laughs").
        self._left -= values
        if self._left < 0:
            expanded = next((each for each in self._within if id(each) in self._done), None)
            if expanded is None:
                raise SpecError([self._fault(node, path[:4], "has too many values", _VALUES_HINT)])
            message = f"has too many values, because aliases of {self._anchor(expanded)} are expanded"
            raise SpecError([self._fault(expanded, path[:4], message, _VALUES_HINT)])
        if len(path) + merges > _MAX_DEPTH:
            mark = self.source.values[path] if merges else _mark(node)
            raise SpecError([Fault(dotted(path[:4]), "is nested too deeply", *mark, hint=_DEPTH_HINT)])

    def _add_fault(self, node: Node, path: Path, message: str, hint: str | None = None) -> None:
        self.faults.append(self._fault(node, path, message, hint))
        # Stop early: a hostile file may contain an error in every value.
        if len(self.faults) >= MAX_FAULTS:
            raise SpecError([more(0, self.faults[-1])])

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        if node.tag != _TAG + "map":
            self._add_fault(node, path, _tagged(node))
        found: dict[str, Any] = {}
        merges: list[tuple[Node, Node]] = []
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                merges.append((key_node, value_node))
            elif self._is_valid_key(key_node, path, found):
                self.source.keys[(*path, key_node.value)] = _mark(key_node)
                found[key_node.value] = self.read(value_node, (*path, key_node.value))
        # After all own keys, because those take precedence regardless of their position.
        for merge in merges:
            self._merge(*merge, path, found)
        return found

    def _is_valid_key(self, node: Node, path: Path, found: dict[str, Any]) -> bool:
        if not isinstance(node, ScalarNode) or node.tag != _TAG + "str":
            hint = "write it in quotes" if isinstance(node, ScalarNode) else None
            if node.tag in {_TAG + "int", _TAG + "float"}:
                hint = "write it in quotes; a number such as 1,000 is written without the comma"
            if isinstance(node, MappingNode):  # a template such as `{{ name }}` is a mapping within a mapping
                hint = "put the value in quotes if it is text such as '{{ name }}'"
            self._add_fault(node, path, "has a key that is not a string", hint)
            return False
        if (meant := missing_space(node.value)) is not None:
            self._add_fault(node, path, "has no space after the colon", f"write `{meant}`")
            return False
        if node.value.startswith(_NO_BREAK_SPACE):  # from a web page; YAML reads it as part of the key
            message = f"the key {cut(node.value.strip())} starts with a no-break space (U+00A0)"
            self._add_fault(node, path, message, "indent with normal spaces")
            return False
        if node.value in found:
            first = self.source.keys[(*path, node.value)]
            problem = f"is a duplicate key; the first one is in line {first.line}"
            self._add_fault(node, (*path, node.value), problem, "remove one of them")
            return False
        return True

    def _merge(self, key: Node, node: Node, path: Path, into: dict[str, Any], depth: int = 1) -> None:
        """Add the mapping that `<<` refers to; keys of the mapping itself, or of an earlier merge, take precedence."""
        for part in node.value if isinstance(node, SequenceNode) else [node]:
            if not isinstance(part, MappingNode):
                self._add_fault(key, path, "`<<` needs a mapping", "refer to one with an anchor: `<<: *name`")
                continue
            if any(each is part for each in self._within):
                message = f"merges {self._anchor(part)}, whose value it is part of"
                raise SpecError([self._fault(key, path, message, _SELF_HINT)])
            self._within.append(part)
            self._count(part, path, 1 + len(part.value), depth)
            for key_node, value_node in part.value:
                if key_node.tag == _TAG + "merge":
                    self._merge(key_node, value_node, path, into, depth + 1)
                elif _is_in(key_node, into) or not self._is_valid_key(key_node, path, into):
                    continue
                else:
                    self.source.keys[(*path, key_node.value)] = _mark(key_node)
                    into[key_node.value] = self.read(value_node, (*path, key_node.value))
            self._within.pop()
            self._done.add(id(part))

    def _scalar(self, node: Node, path: Path) -> Any:
        text: str = node.value
        match node.tag.removeprefix(_TAG):
            case "str" | "merge":
                return text
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return self._integer(node, path, text)
            case "float":
                # Python spells YAML's `.inf` and `.nan` without the dot.
                return float(re.sub(r"\.(?=[inIN])", "", text))
            case _:
                self._add_fault(node, path, _tagged(node))
                return text

    def _integer(self, node: Node, path: Path, text: str) -> int:
        # Longer numbers exceed 64 bits, and Python limits the digits that `int()` parses.
        value = int(text, 0 if text[:2] in {"0x", "0o"} else 10) if len(text) <= 2 * _MAX_INTEGER_BITS else None
        if value is not None and -(1 << (_MAX_INTEGER_BITS - 1)) <= value < 1 << (_MAX_INTEGER_BITS - 1):
            return value
        self._add_fault(
            node, path, f"is too large: integers have {_MAX_INTEGER_BITS} bits", "quote it if it is a string"
        )
        return 0

    def _anchor(self, node: Node) -> str:
        """Return the name and line of the anchor of a node."""
        name = re.compile(r"&[^\s,\[\]{}]+").match(self._text, node.start_mark.index)
        return f"the anchor {cut(name[0]) if name else ''} (line {node.start_mark.line + 1})"

    @staticmethod
    def _fault(node: Node, path: Path, message: str, hint: str | None = None) -> Fault:
        mark = _mark(node)
        return Fault(dotted(path), message, mark.line, mark.column, hint)


def _is_in(key: Node, found: dict[str, Any]) -> bool:
    return isinstance(key, ScalarNode) and key.value in found


def _tagged(node: Node) -> str:
    return f"has the tag {cut(node.tag.removeprefix(_TAG))}, which is not supported"


def _mark(node: Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


def dotted(path: Path) -> str:
    """Join a path with dots."""
    return ".".join(str(part) for part in path)
