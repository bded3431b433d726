"""Redact secrets in workflow files and specs that are read back. Pure.

Secrets belong in `${secret:NAME}`, which is not changed. Values that were written out (a header's token, a password)
are needed by the worker but never shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import yaml

from tunefleet.errors import SpecError
from tunefleet.observability.logs import scrub
from tunefleet.spec.text import HALVES, guard

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML without libyaml: slower, otherwise the same
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

STARS: Final = "***"
_WORDS: Final = (
    "authorization", "token", "passwd", "password", "secret", "cookie",
    *(f"{what}{between}key" for what in ("api", "access", "private") for between in ("", "_", "-")),
)  # fmt: skip
_NAME: Final = re.compile(rf"(?i)[\w-]*(?:{'|'.join(_WORDS)})")
# Characters per search: a regex or string search holds the GIL, and one over a large text would block the server.
_CHUNK: Final = 1 << 16
_STRING: Final = "tag:yaml.org,2002:str"


def tree(value: Any) -> Any:
    """Return a copy of JSON data without its secrets."""
    if isinstance(value, Mapping):
        return {key: _entry(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [tree(inner) for inner in value]
    return scrub(value) if isinstance(value, str) else value


def text(document: str) -> str:
    """Return a YAML or JSON text without its secrets; the rest is unchanged."""
    # Cached: a submit redacts before the store is locked, and again for its response.
    return _cached_short(document) if len(document) < _CHUNK else _cached_long(document)


def _text(document: str) -> str:
    if not _has_a_word(document):
        return scrub(document)
    try:
        readable = _composable(document)
        guard(readable)  # extreme nesting would crash the process in the composer
        found = sorted(_secrets(yaml.compose(readable, Loader=_Loader)))
    except (yaml.YAMLError, UnicodeEncodeError, SpecError):
        return STARS  # a text that does not parse cannot be shown safely
    pieces: list[str] = []
    upto = 0
    mark = document.startswith("\ufeff")  # a byte order mark is not counted by libyaml
    for start, end in ((start + mark, end + mark) for start, end in found):
        tail = "\n" if document[start:end].endswith("\n") else ""
        pieces += document[upto:start], f'"{STARS}"{tail}'
        upto = end
    return scrub("".join([*pieces, document[upto:]]))


# Two caches bound the memory: 256 texts below `_PIECE`, but only 4 larger ones.
_cached_short: Final = lru_cache(maxsize=256)(_text)
_cached_long: Final = lru_cache(maxsize=4)(_text)


def _composable(document: str) -> str:
    """Return a text of the same length that the composer accepts, with the same offsets."""
    if not document.lstrip().startswith("{"):
        return document
    return HALVES.sub(lambda found: "x" * len(found[0]), document.replace("\t", " "))


def _has_a_word(document: str) -> bool:
    longest = max(map(len, _WORDS))
    pieces = (document[start : start + _CHUNK + longest].casefold() for start in range(0, len(document), _CHUNK))
    return any(word in piece for piece in pieces for word in _WORDS)


def _entry(key: str, value: Any) -> Any:
    return STARS if isinstance(value, str) and _secret(key, value) else tree(value)


def _secret(key: str, value: str) -> bool:
    return bool(value) and "${" not in value and _NAME.fullmatch(key) is not None


def _secrets(root: yaml.Node | None) -> Iterator[tuple[int, int]]:
    """Yield the offsets of secrets; a node with several aliases is visited once."""
    seen: set[int] = set()
    # A stack instead of recursion: nesting is the user's.
    ahead = [root]
    while ahead:
        node = ahead.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            ahead += node.value
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            plain = isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode) and value.tag == _STRING
            if plain and id(value) not in seen and _secret(key.value, value.value):
                seen.add(id(value))
                yield value.start_mark.index, value.end_mark.index
            else:
                ahead.append(value)
