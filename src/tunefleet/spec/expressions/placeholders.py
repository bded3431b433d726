"""The syntax of `${…}`: results of other tasks, secrets, and the escape `$${`.

Works on strings only; `references` applies it to specs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

# Alternatives are tried in order, so the escape wins over the placeholder.
_MARKS = re.compile(r"(?P<escape>\$\$\{)|\$\{(?P<inside>[^{}\r\n]*)\}|(?P<open>\$\{)")
_STEP = re.compile(r"""\.(?P<key>[^.\[\]]+)|\[(?P<index>[0-9]+)\]|\[(?P<quote>["'])(?P<text>[^"'\]]+)(?P=quote)\]""")
_SECRET = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_FROM_THE_END = re.compile(r"\[\s*-[0-9]+\s*\]")
# Characters between the braces, or of a path elsewhere; far above real paths, since names have at most 200.
MAX_PLACEHOLDER: Final = 1_000
# Characters of a task name.
_MAX_NAME: Final = 200
_SEPARATORS: Final = re.compile(r"[.\[]")
_SECRET_PREFIX: Final = "secret:"
# The keys of a stored result; a path that starts with any other key starts below `result`.
ENVELOPE_KEYS: Final = ("task_id", "worker_id", "metadata", "received_at", "result")


@dataclass(frozen=True, slots=True)
class Reference:
    """A value in the stored result of another task.

    Args:
        node: Name of the stage or node, or the id of a task submitted earlier.
        path: Keys and indexes below the stored envelope, such as `("result", "items", "0", "output")`.
        text: As written, for messages.
    """

    node: str
    path: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret, which only the worker knows."""

    name: str


@dataclass(frozen=True, slots=True)
class Stray:
    """An invalid `${…}`.

    Args:
        text: As written.
        problem: What is wrong, to complete a sentence about it.
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
    """Split a string into literals and placeholders.

    Args:
        names: Known stage names; needed to recognize names with dots.

    Yields:
        Literals and placeholders, in order.
    """
    end = 0
    for match in _MARKS.finditer(text):
        if match.start() > end:
            yield text[end : match.start()]
        end = match.end()
        if match["escape"]:
            yield Escape()
        elif match["open"]:
            yield Stray("${", "is not closed by }", 'write $${ for a literal "${"')
        else:
            yield _meaning(match["inside"].strip(), match[0], names)
    if end < len(text):
        yield text[end:]


def whole(text: str, names: Collection[str] = ()) -> Reference | Secret | None:
    """Return the placeholder if a string consists of a single one."""
    # Spaces around a placeholder do not make it a string.
    stripped = text.strip()
    if not (stripped.startswith("${") and stripped.endswith("}")):
        return None
    found = list(islice(pieces(stripped, names), 2))  # two are enough to know
    return found[0] if len(found) == 1 and isinstance(found[0], Reference | Secret) else None


def escape(text: str) -> str:
    """Escape every `${` of a string."""
    return text.replace("${", "$${")


def reference(node: str, path: str, text: str | None = None) -> Reference | None:
    """Create a reference from a name and a path, as in conditions and template columns.

    Args:
        node: The stage or node.
        path: Dotted, with brackets for indexes and for keys with dots: `result.items[0].output`; `result.` is
            optional.
        text: For messages; default: name and path joined with a dot.

    Returns:
        The reference, or `None` if the path is invalid or too long.
    """
    if len(path) > MAX_PLACEHOLDER:
        return None
    steps = _steps(path if path.startswith("[") else f".{path}")
    if not steps:
        return None
    below = steps if steps[0] in ENVELOPE_KEYS else ("result", *steps)
    return Reference(node, below, text or f"{node}.{path}")


def rooted(inside: str, names: Collection[str] = (), text: str | None = None) -> Reference | None:
    """Create a reference from name and path in one string, `stage.result.key`; `None` if it is invalid.

    Args:
        inside: Name and path.
        names: Known stage names; the longest match is used.
        text: For messages; default: `inside`.
    """
    # Stage names may contain dots, so every separator is a candidate; the longest known name wins.
    ends = [match.start() for match in _SEPARATORS.finditer(inside[: _MAX_NAME + 1])]
    node = next((inside[:end] for end in reversed(ends) if inside[:end] in names), inside[: min(ends, default=0)])
    if not node.strip():
        return None
    return reference(node.strip(), inside[len(node) :].removeprefix("."), text or inside)


def path_hint(path: str) -> str:
    """Return a hint for an invalid path."""
    if len(path) > MAX_PLACEHOLDER:
        return f"it has {len(path):,} characters; a path has at most {MAX_PLACEHOLDER:,}"
    if _FROM_THE_END.search(path):
        return "indexes count from 0: [0] is the first; negative indexes are not supported"
    return "write it like result.items[0].output; `result.` is optional"


def _meaning(inside: str, text: str, names: Collection[str]) -> Reference | Secret | Stray:
    if len(inside) > MAX_PLACEHOLDER:
        problem = f"has {len(inside):,} characters; a reference has at most {MAX_PLACEHOLDER:,}"
        return Stray(text, problem, "write $${ for a literal ${")
    if inside.startswith(_SECRET_PREFIX):
        name = inside.removeprefix(_SECRET_PREFIX).strip()
        if _SECRET.fullmatch(name):
            return Secret(name)
        return Stray(text, "is not a valid secret name", "use letters, digits and _, such as ${secret:HF_TOKEN}")
    return rooted(inside, names, text) or _stray(inside, text, names)


def _stray(inside: str, text: str, names: Collection[str]) -> Stray:
    literal = "or $${ for a literal ${"
    if inside in names:
        return Stray(
            text, "refers to no value of that stage", f"write ${{{inside}.result.KEY}} or ${{{inside}.task_id}}"
        )
    if _VARIABLE.fullmatch(inside):
        hint = f"write ${{secret:{inside}}} for a secret of the worker, {literal}"
        return Stray(text, "is not replaced: environment variables are not expanded", hint)
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
