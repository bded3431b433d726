"""Hold the words of texts and names: `docs/glossary.md` lists what is not used, and what is used instead."""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
GLOSSARY: Final = ROOT / "docs" / "glossary.md"
HEADING: Final = "## Words that are not used"
TEXTS: Final = ("README.md", "docs/**/*.md", "examples/**/*.md", "src/tunefleet/**/*.py", "web/src/**/*.ts*")
# The glossary names the words, decisions keep the words of their day, and the schema is generated.
UNREAD: Final = ("docs/glossary.md", "docs/decisions/", "web/src/api/schema.d.ts")
KNOWN: Final[dict[str, int]] = {"text": 51, "name": 4}


class Rule(NamedTuple):
    """One row of the glossary's table.

    Args:
        where: `text` for what a person reads, `name` for a class, function or variable that code defines.
        words: The words or, of a name, the whole name without leading underscores.
        instead: What is written instead.
    """

    where: str
    words: tuple[str, ...]
    instead: str


class Hit(NamedTuple):
    """A word that is not used, where it is used."""

    where: str
    place: str
    word: str
    instead: str


def rules(glossary: Path = GLOSSARY) -> tuple[Rule, ...]:
    """Read the table below `HEADING`.

    Raises:
        ValueError: If a row has another shape.
    """
    section = glossary.read_text(encoding="utf-8").partition(HEADING)[2]
    found = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or cells[0] in {"Where", "---"}:
            continue
        if len(cells) != 3 or cells[0] not in KNOWN:
            raise ValueError(f"{glossary}: a row is `| text or name | words | instead |`: {line}")
        found.append(Rule(cells[0], tuple(word.strip(" `") for word in cells[1].split(",")), cells[2]))
    return tuple(found)


def hits(root: Path = ROOT, table: Sequence[Rule] | None = None) -> Iterator[Hit]:
    """Yield every use of a word that is not used."""
    table = rules(root / "docs" / "glossary.md") if table is None else table
    instead = {word.lower(): rule.instead for rule in table if rule.where == "text" for word in rule.words}
    names = {word.lower(): rule.instead for rule in table if rule.where == "name" for word in rule.words}
    # The longest first, so that "tell apart" is not found as "tell".
    spelled = "|".join(re.escape(word) for word in sorted(instead, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w`/.-])({spelled})(?![\w`/-])", re.IGNORECASE) if instead else None
    for path in sorted({path for glob in TEXTS for path in root.glob(glob)}):
        where = path.relative_to(root).as_posix()
        if where.startswith(UNREAD):
            continue
        text = path.read_text(encoding="utf-8")
        code = path.suffix == ".py"
        for number, line in _read_by_people(text) if code else _prose(text):
            for match in pattern.finditer(line) if pattern else ():
                yield Hit("text", f"{where}:{number}", match[0], instead[match[0].lower()])
        for number, name in _names(text) if code else ():
            if (bare := name.strip("_").lower()) in names:
                yield Hit("name", f"{where}:{number}", name, names[bare])


def _prose(text: str) -> Iterator[tuple[int, str]]:
    # What stands in a fence or between backticks is code, whose words are its own.
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", "` `", line)


def _read_by_people(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.COMMENT, tokenize.STRING} and " " in token.string:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, re.sub(r"`[^`]*`", "` `", line)


def _names(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the uses with what is known; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print every use")
    asked = parser.parse_args(arguments)
    found = list(hits())
    if asked.list:
        print(*(f"{hit.place}: {hit.word} → {hit.instead}" for hit in found), sep="\n")
    wrong = False
    for where, known in KNOWN.items():
        count = sum(hit.where == where for hit in found)
        if asked.list:
            print(f"{count:5}  {where}")
        elif count > known:
            print(
                f"{where}: {count} words that are not used, {known} were known; `python -m scripts.check_words --list`"
            )
            wrong = True
        elif count < known:
            print(f"{where}: {count} are left of {known}: lower the number in scripts/check_words.py")
            wrong = True
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
