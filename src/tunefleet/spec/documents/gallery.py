"""The examples that ship: whole documents to begin with, each with the comment at its head as its description.

Some need more than the document: code on the worker, a service, an environment; their comments say so.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tunefleet.spec.documents.workflow import parse_workflow

_FOLDER: Final = Path(__file__).parent.parent / "examples"
_FIRST: Final = ("lora_sft", "sft", "dpo", "evaluate", "pipeline", "chat")
"""What people ask for most often stands at the top; the others follow by name."""


class ExampleDocument(NamedTuple):
    """An example.

    Args:
        name: What it is called.
        description: What it does, in a sentence or a few.
        kinds: The kinds of its tasks, each once, in the order of the document.
    """

    name: str
    description: str
    kinds: tuple[str, ...]
    document: str


@cache
def examples() -> tuple[ExampleDocument, ...]:
    """Return all examples."""
    found = (_read(path) for path in sorted(_FOLDER.glob("*.yaml")))
    places = {name: place for place, name in enumerate(_FIRST)}
    return tuple(sorted(found, key=lambda each: (places.get(each.name, len(_FIRST)), each.name)))


def _read(path: Path) -> ExampleDocument:
    text = path.read_text(encoding="utf-8")
    tasks = parse_workflow(text, filename=path.name).tasks
    return ExampleDocument(path.stem, _head(text), tuple(dict.fromkeys(task.kind for task in tasks)), text)


def _head(text: str) -> str:
    """Return the first paragraph of the comment at the head of a document."""
    lines = []
    for line in text.splitlines():
        said = line.removeprefix("#").strip()
        if not line.startswith("#") or not said:
            break
        lines.append(said)
    return " ".join(lines)
