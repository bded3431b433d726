"""Collect every error that the code raises on purpose, with its hint, from the code itself.

    python -m scripts.error_texts

prints them one a line, to be read; `faults` holds them to the rules, and a test holds `faults` to none.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tunefleet import errors

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src/tunefleet"
ERRORS = {
    name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.TunefleetError)
}


_ENDS = re.compile(r"[.?!…:]$|\}$|`$")
_COMMAND = re.compile(r"pip install|tunefleet |: /[a-z]+ \S+$")
_NAME_FIRST = re.compile(r"[\w-]*[._:(-]|[a-z]+[A-Z]|(?:attempt|mu|tunefleet|reload|pip|spec|squeue|torch|vLLM) ")
_ASKED = re.compile(r"\b(?:(?:cancel|pause) (?:it|\{[^}]*\})|start it first)", re.IGNORECASE)
"""What is done by a command of its own, which a hint names."""
_QUOTED = re.compile(r"\{[^}]*\}|`[^`]*`|'[^']*'")
_JARGON = re.compile(
    r"\b(?:exception|NoneType|errno|boolean|deserial\w+|payload|illegal|traceback|timed out"
    r"|unable to|an error occurred|something went wrong|please|oops|node id|workload)\b",
    re.IGNORECASE,
)


class ErrorText(NamedTuple):
    """One place that makes an error.

    Args:
        path: The file, from the root of the repository.
        line: Where in it.
        kind: The class, such as `InputError`.
        message: With `{…}` for what is put in; None if it is made elsewhere.
        hint: The same; None if there is none.
        hint_elsewhere: Whether a hint is given that is not written there.
    """

    path: str
    line: int
    kind: str
    message: str | None
    hint: str | None
    hint_elsewhere: bool = False


def text_of(node: ast.expr | None) -> str | None:
    """Return a text as it is written, with `{…}` for what is put in; None if it is not written here."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else f"{{{_short(part)}}}" for part in node.values)
        return "".join(map(str, parts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        return None if left is None and right is None else f"{left or '{…}'}{right or '{…}'}"
    if isinstance(node, ast.IfExp):
        left, right = text_of(node.body), text_of(node.orelse)
        return left if right is None else right if left is None else f"{left} | {right}"
    return None


def _short(part: ast.expr) -> str:
    name = ast.unparse(part.value if isinstance(part, ast.FormattedValue) else part)
    return name if re.fullmatch(r"[\w.]{1,30}", name) else "…"


def collect(root: Path = SOURCES) -> Iterator[ErrorText]:
    """Yield every error that is made in the code, in the order of the files."""
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        kinds = {*ERRORS, *_own_kinds(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (name := ast.unparse(node.func).rpartition(".")[2]) in kinds:
                words = {word.arg: word.value for word in node.keywords}
                message = node.args[0] if node.args else words.get("message")
                hint = words.get("hint")
                yield ErrorText(
                    path.relative_to(ROOT).as_posix(),
                    node.lineno,
                    name,
                    text_of(message),
                    text_of(hint),
                    hint is not None and text_of(hint) is None and not _is_none(hint),
                )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _own_kinds(tree: ast.Module) -> set[str]:
    """Return the classes of a file that are errors of Tunefleet's."""
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return {node.name for node in classes if {ast.unparse(base) for base in node.bases} & set(ERRORS)}


def faults(found: ErrorText) -> Iterator[str]:
    """Yield the rules that the text of an error breaks.

    A message is a sentence that names something, in the words of who uses Tunefleet; where somebody at a terminal or a
    machine can act, a hint says how. What a command does, the hint asks for by the command.
    """
    for what, text in (("message", found.message), ("hint", found.hint)):
        if not text:
            continue
        if not _ENDS.search(text) and not (what == "hint" and _COMMAND.search(text)):
            yield f"the {what} does not end as a sentence"
        if text[0].islower() and not _NAME_FIRST.match(text):
            yield f"the {what} does not begin as a sentence"
        prose = _QUOTED.sub("", text)
        word = _JARGON.search(prose)
        if word:
            yield f"the {what} says {word[0]!r}, which is no word of who uses Tunefleet"
    if found.message and len(_QUOTED.sub(" ", found.message).split()) < 3 and "{" not in found.message:
        yield "the message names nothing"
    if (asked := _ASKED.search(found.hint or "")) and "tunefleet " not in (found.hint or ""):
        yield f"the hint says {asked[0]!r}, and names no command"
    can_act = found.kind in {"AuthError", "MachineError"} or "/cli/" in found.path
    if can_act and found.message and not found.hint and not found.hint_elsewhere:
        yield "somebody can act, and no hint says how"


def main() -> int:
    """Print them."""
    for each in collect():
        hint = "  → …" if each.hint_elsewhere else f"  → {each.hint}" if each.hint else ""
        print(f"{each.path.removeprefix('src/tunefleet/')}:{each.line} {each.kind}: {each.message or '…'}{hint}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
