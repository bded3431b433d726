"""Text of a document → plain data, with the line and column of every key and value.

YAML 1.2's core words (so `on` and `no` are texts, `5e-7` is a number, a date is a text), one document, no tags, no
duplicate keys; JSON is read too. Knows nothing of what a document means.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tunefleet.errors import Fault, SpecError
from tunefleet.spec.value_preview import MAX_FAULTS, cut, more

try:
    from yaml import CSafeLoader as _BaseLoader
except ImportError:  # PyYAML without libyaml: slower, otherwise the same
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]

Path = tuple[str | int, ...]

_MAX_DEPTH: Final = 48
MAX_VALUES: Final = 100_000
"""Of a document; data of more belong into a file."""
_MAX_INTEGER_BITS: Final = 64
HALVES: Final = re.compile(r"\\(?<!\\\\)((?:\\\\)*+)(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})")
"""The two escapes by which JSON writes a character beyond U+FFFF, behind the backslashes before them. Starts with a
literal character, which is fast to find: a search holds the GIL for the whole text."""
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_DEPTH_HINT: Final = f"at most {_MAX_DEPTH} levels can be read; does an alias lead back to itself?"
_VALUES_HINT: Final = f"at most {MAX_VALUES:,} are read; put data into a file, or submit several documents"
_TAG: Final = "tag:yaml.org,2002:"


class _Loader(_BaseLoader):
    """PyYAML's safe loader with the words of YAML 1.2."""

    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 PyYAML's own shape


def _words() -> None:
    for word, pattern, first in (
        ("null", _NULL, ["~", "n", "N", ""]),
        ("bool", _BOOL, list("tTfF")),
        ("int", _INT, list("-+0123456789")),
        ("float", _FLOAT, list("-+0123456789.")),
        ("merge", re.compile("<<"), ["<"]),
    ):
        _Loader.add_implicit_resolver(_TAG + word, re.compile(f"(?:{pattern.pattern})\\Z"), first)


_words()


class Mark(NamedTuple):
    """A place in the text, from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Source:
    """Plain data and where each piece of it stands.

    Args:
        data: Dictionaries, lists, texts, numbers, booleans and None.
        keys: Path → where its key stands.
        values: Path → where its value stands.
        origins: For data that were put together from pieces of a document: path of a piece → its path there.
    """

    data: Any = None
    keys: dict[Path, Mark] = field(default_factory=dict)
    values: dict[Path, Mark] = field(default_factory=dict)
    origins: dict[Path, Path] = field(default_factory=dict)

    def part(self, data: Any, origins: dict[Path, Path]) -> Source:
        """Return data that consist of pieces of this document; their places are found by `origins`."""
        return Source(data, self.keys, self.values, origins)

    def origin(self, path: Path) -> Path:
        """Return the path in the document."""
        for length in range(len(path), 0, -1) if self.origins else ():
            found = self.origins.get(path[:length])
            if found is not None:
                return found + path[length:]
        return path

    def mark(self, path: Path, *, key: bool = False) -> Mark:
        """Return the place of a value, or of its key, or of the nearest thing around it that has one."""
        path = self.origin(path)
        first, second = (self.keys, self.values) if key else (self.values, self.keys)
        while path:
            found = first.get(path) or second.get(path)
            if found is not None:
                return found
            path, first, second = path[:-1], self.keys, self.values
        return self.values.get((), Mark(1, 1))


def read_text(text: str, *, filename: str | None = None) -> Source:
    """Read one YAML or JSON document.

    Args:
        filename: Its name, for messages.

    Raises:
        SpecError: If it is not one well-formed document; lists what is wrong.
    """
    if text.lstrip().startswith("{"):
        # JSON may be indented with tabs, which YAML refuses; inside its strings a tab is always escaped.
        text = text.replace("\t", " ")
        # Its escapes of characters beyond U+FFFF come in halves, of which YAML knows nothing.
        text = HALVES.sub(lambda found: found[1] + json.loads(f'"\\{found[2]}"'), text)
    reader = _Reader()
    try:
        guard(text)
        node = yaml.compose(text, Loader=_Loader)
        reader.source.data = reader.read(node, ()) if node is not None else None
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        reader.faults.append(syntax_fault(error, text))
    except SpecError as error:
        reader.faults.extend(error.faults)
    if reader.faults:
        raise SpecError(reader.faults, filename=filename)
    return reader.source


def guard(text: str) -> None:
    """Refuse deep nesting before anything recursive sees it (libyaml's composer would overflow the C stack).

    Refuses, too, what would be refused for its number of values when it was composed; each may have a key.
    """
    depth = nodes = 0
    for event in yaml.parse(text, Loader=_Loader):
        nodes += isinstance(event, yaml.NodeEvent)
        if nodes > 2 * MAX_VALUES:
            raise SpecError([Fault("", "the document has too many values", *_start(event), hint=_VALUES_HINT)])
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise SpecError([Fault("", "the document is nested too deeply", *_start(event), hint=_DEPTH_HINT)])
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _start(event: yaml.Event) -> Mark:
    mark = event.start_mark
    return Mark(mark.line + 1, mark.column + 1) if mark else Mark(1, 1)


class _Reader:
    """Walks a node tree; collects data, places and faults."""

    def __init__(self) -> None:
        self.source = Source()
        self.faults: list[Fault] = []
        self._left = MAX_VALUES

    def read(self, node: Node, path: Path) -> Any:
        self._count(node, path)
        self.source.values[path] = _mark(node)
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            if node.tag != _TAG + "seq":
                self._tell(node, path, _tagged(node))
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _count(self, node: Node, path: Path, values: int = 1, merges: int = 0) -> None:
        # Aliases and merges can make a short text endless.
        self._left -= values
        if self._left < 0:
            raise SpecError([self._fault(node, path[:4], "has too many values", _VALUES_HINT)])
        if len(path) + merges > _MAX_DEPTH:
            mark = self.source.values[path] if merges else _mark(node)
            raise SpecError([Fault(dotted(path[:4]), "is nested too deeply", *mark, hint=_DEPTH_HINT)])

    def _tell(self, node: Node, path: Path, message: str, hint: str | None = None) -> None:
        self.faults.append(self._fault(node, path, message, hint))
        if len(self.faults) >= MAX_FAULTS:
            raise SpecError([more(0, self.faults[-1])])

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        if node.tag != _TAG + "map":
            self._tell(node, path, _tagged(node))
        found: dict[str, Any] = {}
        merges: list[Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                merges.append(value_node)
            elif self._good_key(key_node, path, found):
                self.source.keys[(*path, key_node.value)] = _mark(key_node)
                found[key_node.value] = self.read(value_node, (*path, key_node.value))
        for merge in merges:
            self._merge(merge, path, found)
        return found

    def _good_key(self, node: Node, path: Path, found: dict[str, Any]) -> bool:
        if not isinstance(node, ScalarNode) or node.tag != _TAG + "str":
            hint = "write it in quotes" if isinstance(node, ScalarNode) else None
            self._tell(node, path, "has a key that is not a text", hint)
            return False
        if node.value in found:
            first = self.source.keys[(*path, node.value)]
            problem = f"is given twice; the first stands in line {first.line}"
            self._tell(node, (*path, node.value), problem, "leave one of them out")
            return False
        return True

    def _merge(self, node: Node, path: Path, into: dict[str, Any], depth: int = 1) -> None:
        """Add what `<<` refers to; keys that stand in the mapping itself, or in an earlier one, win."""
        for part in node.value if isinstance(node, SequenceNode) else [node]:
            if not isinstance(part, MappingNode):
                self._tell(part, path, "`<<` takes a mapping", "name one that has an anchor: `<<: *name`")
                continue
            self._count(part, path, 1 + len(part.value), depth)
            for key_node, value_node in part.value:
                if key_node.tag == _TAG + "merge":
                    self._merge(value_node, path, into, depth + 1)
                elif _is_in(key_node, into) or not self._good_key(key_node, path, into):
                    continue
                else:
                    self.source.keys[(*path, key_node.value)] = _mark(key_node)
                    into[key_node.value] = self.read(value_node, (*path, key_node.value))

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
                return float(re.sub(r"\.(?=[inIN])", "", text))
            case _:
                self._tell(node, path, _tagged(node))
                return text

    def _integer(self, node: Node, path: Path, text: str) -> int:
        # No number of so many digits is of 64 bits, and Python refuses to read them all.
        value = int(text, 0 if text[:2] in {"0x", "0o"} else 10) if len(text) <= 2 * _MAX_INTEGER_BITS else None
        if value is not None and -(1 << (_MAX_INTEGER_BITS - 1)) <= value < 1 << (_MAX_INTEGER_BITS - 1):
            return value
        self._tell(node, path, f"is too large: whole numbers have {_MAX_INTEGER_BITS} bits", "a text stands in quotes")
        return 0

    @staticmethod
    def _fault(node: Node, path: Path, message: str, hint: str | None = None) -> Fault:
        mark = _mark(node)
        return Fault(dotted(path), message, mark.line, mark.column, hint)


def _is_in(key: Node, found: dict[str, Any]) -> bool:
    return isinstance(key, ScalarNode) and key.value in found


def _tagged(node: Node) -> str:
    return f"has the tag {cut(node.tag.removeprefix(_TAG))}, which is not understood"


def _mark(node: Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


def dotted(path: Path) -> str:
    """Write a path with dots."""
    return ".".join(str(part) for part in path)


_NOT_ALLOWED: Final = yaml.reader.Reader.NON_PRINTABLE
_BREAKS = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


def syntax_fault(error: yaml.YAMLError | UnicodeEncodeError, text: str) -> Fault:
    """Word what PyYAML found wrong with a text."""
    if isinstance(error, UnicodeEncodeError):
        return Fault("", "the text is not valid Unicode", *_place(text, error.start), hint="save it as UTF-8")
    if isinstance(error, yaml.reader.ReaderError):
        found = _NOT_ALLOWED.search(text)
        name = f", U+{ord(found[0]):04X}" if found else ""
        message = f"the text has a character that YAML does not allow{name} ({error.reason})"
        way_out = "take it out, or write it in double quotes with a backslash: \\x07 is U+0007"
        return Fault("", message, *_place(text, found.start() if found else 0), hint=way_out)
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or error)
    hint: str | None = None
    if "but found another document" in problem:
        problem, hint = "there is a second document", "submit one document at a time, without `---` between"
    elif "mapping values are not allowed" in problem:
        hint = "is the line above indented wrongly, or does a value with `: ` lack quotes?"
    elif "cannot start any token" in problem and mark and _at(text, mark.line, mark.column) == "\t":
        hint = "indent with spaces, not tabs"
    return Fault("", problem, mark.line + 1 if mark else 0, mark.column + 1 if mark else 0, hint)


def _place(text: str, index: int) -> tuple[int, int]:
    """Return line and column of a character, from 1."""
    lines = _BREAKS.split(text[:index])
    return len(lines), len(lines[-1]) + 1


def _at(text: str, line: int, column: int) -> str:
    """Return the character at a place, from 0; empty if there is none."""
    lines = _BREAKS.split(text)
    return lines[line][column : column + 1] if line < len(lines) else ""
