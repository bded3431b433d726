"""The fenced blocks of a page, and what becomes of each: it is run, written, held against the code, or left out.

A command block is run by the test of its page, word by word, and a document (YAML, Python, JSON …) is held against the
code, unless a comment above it, which readers do not see, says otherwise:

    <!-- skip: why it cannot be run here -->           its commands are still held against the command line
    <!-- skip "words": why -->                         the same, of those commands only that have these words
    <!-- file: first.yaml -->                          it is what this file holds; the reader saves it
    <!-- run -->                                       a Python block that is run, too
    <!-- shown: why nothing makes it here -->          neither commands nor a document: a drawing, a picture of a screen
    <!-- foreign: whose it is -->                      a document that our code does not read
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SHELLS: Final = frozenset({"", "bash", "sh", "console"})
_FENCE: Final = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_NOTE: Final = re.compile(
    r'<!-- (?P<verb>skip|file|run|shown|foreign)(?: "(?P<words>[^"]+)")?(?:: (?P<said>.*?))? -->\s*'
)
_COMMENT: Final = re.compile(r"\s{2,}#\s.*$")
_ABOVE: Final = re.compile(r"(?:^ *<!-- [^\n]* -->\n+)+\Z", re.MULTILINE)
_HEREDOC: Final = re.compile(r"<<'?(\w+)'?")


@dataclass(frozen=True)
class Note:
    """One comment above a block."""

    verb: str
    said: str = ""
    words: str = ""


@dataclass(frozen=True)
class Command:
    """One command of a block, with what the page shows as its output, if it shows any."""

    text: str
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    notes: tuple[Note, ...] = field(default=())

    @property
    def where(self) -> str:
        """Page and line, for messages."""
        return f"{self.page}:{self.line}"

    def note(self, verb: str) -> Note | None:
        """Return the comment of this verb that is about the whole block."""
        return next((note for note in self.notes if note.verb == verb and not note.words), None)

    @property
    def has_commands(self) -> bool:
        """Whether a reader would type what is in it."""
        return self.language in SHELLS and not any(self.note(verb) for verb in ("file", "shown", "foreign"))

    @property
    def commands(self) -> list[Command]:
        """Its commands in their order, without what a comment behind them says."""
        return list(_commands(self.text)) if self.has_commands else []

    @property
    def run(self) -> list[Command]:
        """The commands that the page's test runs."""
        if self.note("skip"):
            return []
        left_out = [note.words for note in self.notes if note.verb == "skip"]
        return [each for each in self.commands if not any(words in each.text for words in left_out)]


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages that a newcomer follows."""
    docs = root / "docs"
    found = [root / "README.md", *docs.glob("tutorial/*.md"), *docs.glob("how-to/*.md")]
    return sorted([*found, *(root / "examples").rglob("README.md")])


def blocks(page: Path, root: Path = ROOT) -> list[Block]:
    """Return the fenced blocks of a page with the comments above each."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(root).as_posix()
    found = []
    for match in _FENCE.finditer(text):
        above = _ABOVE.search(text[: match.start()])
        notes = _NOTE.finditer(above.group()) if above else ()
        indent = match["indent"]
        lines = [line.removeprefix(indent) for line in match["text"].splitlines()]
        found.append(
            Block(
                name,
                text.count("\n", 0, match.start()) + 1,
                match["language"],
                "\n".join(lines) + "\n",
                tuple(Note(note["verb"], note["said"] or "", note["words"] or "") for note in notes),
            )
        )
    return found


def every_block(root: Path = ROOT) -> list[Block]:
    """Return the blocks of all pages."""
    return [block for page in pages(root) for block in blocks(page, root)]


def _commands(text: str) -> Iterator[Command]:
    """Split a block: by lines, which a backslash or a here-document joins; `$ ` marks commands among outputs."""
    lines = text.splitlines()
    prompts = any(line.startswith("$ ") for line in lines)
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        line = line.removeprefix("$ ") if prompts else line
        while line.endswith("\\") and at < len(lines):
            line = f"{line[:-1].rstrip()} {lines[at].strip()}"
            at += 1
        end = _HEREDOC.search(line)
        if end:
            stop = lines.index(end[1], at) + 1
            line = "\n".join([line, *lines[at:stop]])
            at = stop
        shown: list[str] = []
        while prompts and at < len(lines) and not lines[at].startswith("$ "):
            shown.append(lines[at])
            at += 1
        yield Command(line if end else _COMMENT.sub("", line).rstrip(), tuple(shown))
