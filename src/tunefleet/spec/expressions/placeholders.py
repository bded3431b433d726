"""The grammar of `${…}`: results of other tasks, secrets, and the escape `$${`.

Knows texts only; where they stand in a spec is the business of `references`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

_MARKS = re.compile(r"(?P<escape>\$\$\{)|\$\{(?P<inside>[^{}\r\n]*)\}|(?P<open>\$\{)")
_STEP = re.compile(r"""\.(?P<key>[^.\[\]]+)|\[(?P<index>[0-9]+)\]|\[(?P<quote>["'])(?P<text>[^"'\]]+)(?P=quote)\]""")
_SECRET = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_FROM_THE_END = re.compile(r"\[\s*-[0-9]+\s*\]")
MAX_PLACEHOLDER: Final = 1_000
"""Characters between the braces, and of a path anywhere else; names have 200 at most, and a path hardly more."""
# Characters of a name of a task, at most.
_MAX_NAME: Final = 200
_SEPARATORS: Final = re.compile(r"[.\[]")
_SECRET_PREFIX: Final = "secret:"
ENVELOPE_KEYS: Final = ("task_id", "worker_id", "metadata", "received_at", "result")
"""The keys of a stored result; a path that starts with another key starts below `result`."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A value in the stored result of another task.

    Args:
        node: Name of the stage or node, or the id of a task that was submitted before.
        path: Keys and indexes below the stored envelope, such as `("result", "items", "0", "output")`.
        text: As it was written, for messages.
    """

    node: str
    path: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that only the worker knows."""

    name: str


@dataclass(frozen=True, slots=True)
class Stray:
    """A `${…}` that means nothing.

    Args:
        text: As it was written.
        problem: What is wrong with it, as the end of a sentence about it.
        hint: What to write instead.
    """

    text: str
    problem: str
    hint: str


@dataclass(frozen=True, slots=True)
class Escape:
    """`$${`, which stands for the characters `${`."""


Piece = str | Reference | Secret | Stray | Escape


def pieces(text: str, names: Collection[str] = ()) -> Iterator[Piece]:
    """Take a text apart.

    Args:
        names: Names of stages that are known; a name with dots in it is recognised by them.

    Yields:
        Plain texts and what stands between them, in order.
    """
    end = 0
    for match in _MARKS.finditer(text):
        if match.start() > end:
            yield text[end : match.start()]
        end = match.end()
        if match["escape"]:
            yield Escape()
        elif match["open"]:
            yield Stray("${", "is not closed by }", 'write $${ where the characters "${" are meant')
        else:
            yield _meaning(match["inside"].strip(), match[0], names)
    if end < len(text):
        yield text[end:]


def whole(text: str, names: Collection[str] = ()) -> Reference | Secret | None:
    """Return what a text consists of, if it is one placeholder and nothing else."""
    stripped = text.strip()
    if not (stripped.startswith("${") and stripped.endswith("}")):
        return None
    found = list(islice(pieces(stripped, names), 2))  # a second one is enough to know, however many follow
    return found[0] if len(found) == 1 and isinstance(found[0], Reference | Secret) else None


def escape(text: str) -> str:
    """Return a text that means just these characters, whatever `${` it holds."""
    return text.replace("${", "$${")


def reference(node: str, path: str, text: str | None = None) -> Reference | None:
    """Make a reference out of a name and a path, as conditions and template columns write them.

    Args:
        node: The stage or node.
        path: Dotted, with brackets for indexes and for keys with dots: `result.items[0].output`; `result.` may be
            left out.
        text: For messages; by default both with a dot between.

    Returns:
        The reference, or None if the path cannot be read, or is longer than any that means something.
    """
    if len(path) > MAX_PLACEHOLDER:
        return None
    steps = _steps(path if path.startswith("[") else f".{path}")
    if not steps:
        return None
    below = steps if steps[0] in ENVELOPE_KEYS else ("result", *steps)
    return Reference(node, below, text or f"{node}.{path}")


def rooted(inside: str, names: Collection[str] = (), text: str | None = None) -> Reference | None:
    """Make a reference out of a name and a path in one, `stage.result.key`; None if it cannot be read.

    Args:
        inside: Name and path.
        names: Names of stages that are known; the longest that fits is taken.
        text: For messages; by default `inside`.
    """
    ends = [match.start() for match in _SEPARATORS.finditer(inside[: _MAX_NAME + 1])]
    node = next((inside[:end] for end in reversed(ends) if inside[:end] in names), inside[: min(ends, default=0)])
    if not node.strip():
        return None
    return reference(node.strip(), inside[len(node) :].removeprefix("."), text or inside)


def path_hint(path: str) -> str:
    """Return how a path that cannot be read is written."""
    if len(path) > MAX_PLACEHOLDER:
        return f"it has {len(path):,} characters; a path has at most {MAX_PLACEHOLDER:,}"
    if _FROM_THE_END.search(path):
        return "indexes count from 0: [0] is the first; there is none for the last"
    return "write it like result.items[0].output; `result.` may be left out"


def _meaning(inside: str, text: str, names: Collection[str]) -> Reference | Secret | Stray:
    if len(inside) > MAX_PLACEHOLDER:
        problem = f"has {len(inside):,} characters; a reference has at most {MAX_PLACEHOLDER:,}"
        return Stray(text, problem, "write $${ for the characters themselves")
    if inside.startswith(_SECRET_PREFIX):
        name = inside.removeprefix(_SECRET_PREFIX).strip()
        if _SECRET.fullmatch(name):
            return Secret(name)
        return Stray(text, "is not the name of a secret", "letters, digits and _, such as ${secret:HF_TOKEN}")
    return rooted(inside, names, text) or _stray(inside, text, names)


def _stray(inside: str, text: str, names: Collection[str]) -> Stray:
    literal = "or $${ for the characters themselves"
    if inside in names:
        return Stray(text, "names no value of that stage", f"write ${{{inside}.result.KEY}} or ${{{inside}.task_id}}")
    if _VARIABLE.fullmatch(inside):
        hint = f"write ${{secret:{inside}}} for a secret of the worker, {literal}"
        return Stray(text, "is not replaced: variables are not read", hint)
    if _FROM_THE_END.search(inside):
        return Stray(text, "has an index that counts from the end", path_hint(inside))
    hint = f"write ${{STAGE.result.KEY}}, ${{STAGE.task_id}} or ${{secret:NAME}}, {literal}"
    return Stray(text, "is neither a reference nor a secret", hint)


def _steps(path: str) -> tuple[str, ...]:
    found, end = [], 0
    for match in _STEP.finditer(path):
        if match.start() != end:
            return ()
        found.append(match["key"] or match["index"] or match["text"])
        end = match.end()
    return tuple(found) if end == len(path) else ()
