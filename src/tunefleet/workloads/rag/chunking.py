"""Splits long texts into chunks."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tunefleet.spec.tasks.retrieval import ChunkingSpec
from tunefleet.workloads.inference.items import Item

_POINTS: Final = uuid.UUID("6f1d1e0e-3c5b-5d0a-9a7e-2f6b3c1d4e5f")
Offsets = Callable[[str], list[tuple[int, int]]]
"""From a text to the character offsets of its tokens."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a document."""

    source: str
    number: int
    text: str
    metadata: dict[str, Any]

    def id(self, collection: str) -> str:
        """Return the point id: equal for the same chunk of the same document, so that indexing again replaces it."""
        return str(uuid.uuid5(_POINTS, f"{collection}\0{self.source}\0{self.number}"))

    @property
    def payload(self) -> dict[str, Any]:
        """The payload next to its vector."""
        return {"text": self.text, "metadata": self.metadata, "source": self.source, "chunk": self.number}


def chunks(items: Sequence[Item], how: ChunkingSpec | None, offsets: Offsets) -> list[Chunk]:
    """Return the chunks of documents, in order; for a duplicate document, of the last one only.

    Args:
        how: How long texts are split; None keeps them whole.
    """
    found: dict[str, list[Chunk]] = {}
    for item in items:
        source = _source(item)
        pieces = [item.text] if how is None else _cut(item.text, how, offsets)
        found[source] = [Chunk(source, number, text, item.metadata) for number, text in enumerate(pieces)]
    return [chunk for each in found.values() for chunk in each]


def _source(item: Item) -> str:
    for key in ("source", "id"):
        named = item.metadata.get(key)
        if isinstance(named, str | int) and not isinstance(named, bool) and str(named):
            return str(named)
    return hashlib.sha256(item.text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _cut(text: str, how: ChunkingSpec, offsets: Offsets) -> list[str]:
    places = offsets(text) if how.by == "tokens" else [(at, at + 1) for at in range(len(text))]
    if len(places) <= how.size:
        return [text]
    return [text[begin:end] for begin, end in _windows(places, how)]


def _windows(places: Sequence[tuple[int, int]], how: ChunkingSpec) -> Iterator[tuple[int, int]]:
    step = how.size - how.overlap
    for first in range(0, len(places), step):
        last = min(first + how.size, len(places)) - 1
        yield places[first][0], places[last][1]
        if last == len(places) - 1:
            return
