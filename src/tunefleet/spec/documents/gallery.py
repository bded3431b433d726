"""Bundled example workflows; the comment at the top of each file is its description.

Some have further requirements, such as code on the worker, a service or an environment, as their comments state.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tunefleet.spec.documents.workflow import parse_workflow

_FOLDER: Final = Path(__file__).parent.parent / "examples"
# The most requested examples come first; the others follow by name.
_FIRST: Final = ("lora_sft", "sft", "dpo", "evaluate", "pipeline", "chat")


class ExampleDocument(NamedTuple):
    """An example workflow.

    Args:
        name: File name without suffix.
        description: What it does, in one or a few sentences.
        kinds: Its task types, each once, in the order of the file.
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
    """Return the first paragraph of the comment at the top of a file."""
    lines = []
    for line in text.splitlines():
        text_line = line.removeprefix("#").strip()
        if not line.startswith("#") or not text_line:
            break
        lines.append(text_line)
    return " ".join(lines)
