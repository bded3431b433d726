"""Hide what looks like a secret in a document or a spec that is read back. Pure.

Secrets belong behind `${secret:NAME}`, which stays as it is. What was written out all the same (a header's token, a
password) was needed by the worker, and is shown to nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import yaml

from tunefleet.services.scrub import scrub

STARS: Final = "***"
_WORD: Final = re.compile(
    r"(?i)(?:authorization|token|passw(?:or)?d|secret|api[_-]?key|access[_-]?key|private[_-]?key|cookie)"
)
"""Looked for anywhere in a document, so without what may stand before it: that would take time by the square."""
_NAME: Final = re.compile(rf"(?i)[\w-]*{_WORD.pattern.removeprefix('(?i)')}")
_STRING: Final = "tag:yaml.org,2002:str"


def tree(value: Any) -> Any:
    """Return a copy of JSON data without its secrets."""
    if isinstance(value, Mapping):
        return {key: _entry(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [tree(inner) for inner in value]
    return scrub(value) if isinstance(value, str) else value


@lru_cache(maxsize=256)
def text(document: str) -> str:
    """Return a YAML or JSON text without its secrets; all else stays as it was written."""
    if _WORD.search(document) is None:
        return scrub(document)
    try:
        found = sorted(_secrets(yaml.compose(document, Loader=yaml.SafeLoader)), reverse=True)
    except yaml.YAMLError:
        return STARS  # what cannot be read cannot be shown without risk
    for start, end in found:
        tail = "\n" if document[start:end].endswith("\n") else ""
        document = f'{document[:start]}"{STARS}"{tail}{document[end:]}'
    return scrub(document)


def _entry(key: str, value: Any) -> Any:
    return STARS if isinstance(value, str) and _secret(key, value) else tree(value)


def _secret(key: str, value: str) -> bool:
    return bool(value) and "${" not in value and _NAME.fullmatch(key) is not None


def _secrets(root: yaml.Node | None) -> Iterator[tuple[int, int]]:
    """Yield where the secrets of a text stand; a node with several aliases is looked at once."""
    seen: set[int] = set()
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
