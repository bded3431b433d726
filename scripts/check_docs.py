"""Hold the documents against the tree: links, named tests, variables, commands, and no path of anybody's machine.

Each function returns one line for each fault; `main` prints them all. The tests call the same functions.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from scripts import write_reference
from scripts.error_texts import text_of
from tests.areas import AREAS
from tunefleet.cli import main as cli

ROOT = Path(__file__).resolve().parent.parent
COMPATIBILITY = "docs/reference/compatibility.md"
TEST_MAP = "docs/reference/tests.md"
WEEKLY = ".github/workflows/proofs.yml"
STATUSES = {"built", "planned", "differs"}
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MAKE = re.compile(r"(?:^|`)make ([a-z][a-z-]*)", re.MULTILINE)
COMMAND = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?tunefleet ([a-z-][^\n]*)$", re.MULTILINE)
TEXT_COMMAND = re.compile(
    r"`[^`\n]*\btunefleet (?P<quoted>[^`\n]+)`"
    r"|(?:^|: | {2,})(?:[A-Z_]+=\S+ )*tunefleet (?P<bare>[a-z-][^`\n]*?)(?= {2,}|$)",
    re.MULTILINE,
)
"""A command line in a text of the code: in backticks, or bare as a line or behind a colon."""
OTHER_COMMAND = re.compile(
    r"(?<![\w./@\"-])(?<!from )(?:\.venv/bin/)?tunefleet (?P<line>[a-z][^`<\"”“\n\\']*?)(?= {2,}|[`<\"”“\n\\']|$)"
)
"""A command line in a text that is neither Python nor Markdown: a page's string, a comment of YAML, a unit."""
OTHERS = ("web/src/", "deploy/", "examples/", "scripts/")
NAMED_PATH = re.compile(r"(?<![\w./@:-])(?P<path>(?:docs|examples|deploy|scripts|bench)/[A-Za-z0-9_./-]*[A-Za-z0-9_])")
"""A file of this repository, as text names it."""
NOT_HERE = {"deploy/.env", "docs/assets", "docs/start.js"}
"""Paths of that form that are no files: written by a command, and routes."""
NO_COMMANDS = {("trace", "of", "{task_id}")}
"""Texts of that form that are no command lines: the seed of a trace's id."""
MACHINE_PATH = re.compile(r"(?<![\w.$~{])/(?:home|Users|root|work|opt)/\w+")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|TBD)\b")


class Row(NamedTuple):
    """A row of the compatibility table."""

    line: int
    item: str
    ours: str
    status: str
    test: str


def tracked(root: Path = ROOT) -> list[Path]:
    """Return the files that are in the repository or about to be."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in names.stdout.splitlines() if (path := root / name).is_file()]


def documents(root: Path = ROOT) -> list[Path]:
    """Return the Markdown files."""
    return [path for path in tracked(root) if path.suffix == ".md" and "assets" not in path.parts]


def anchor(heading: str) -> str:
    """Return the anchor that a Markdown heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _anchors(text: str) -> set[str]:
    return {anchor(line.lstrip("#")) for line in FENCE.sub("", text).splitlines() if line.startswith("#")}


def broken_links(root: Path = ROOT) -> list[str]:
    """Find relative links that lead nowhere."""
    found = []
    for page in documents(root):
        text = page.read_text(encoding="utf-8")
        for link in LINK.findall(FENCE.sub("", text)):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, part = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists():
                found.append(f"{page.relative_to(root)}: link to {link}, which does not exist")
            elif part and target.suffix == ".md" and part not in _anchors(target.read_text(encoding="utf-8")):
                found.append(f"{page.relative_to(root)}: link to {link}, which has no such heading")
    return found


def rows(root: Path = ROOT) -> Iterator[Row]:
    """Yield the rows of the compatibility table."""
    for number, line in enumerate((root / COMPATIBILITY).read_text(encoding="utf-8").splitlines(), 1):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and cells[0] != "Item" and set(cells[0]) - set("-: "):
            yield Row(number, *cells)


@functools.cache
def test_names(path: Path) -> frozenset[str]:
    """Return the tests of a file, as pytest names them after the file: `test_x`, `TestY::test_z`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
            methods = [m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}::{method.name}" for method in methods}
    return frozenset(name for name in found if name.lower().startswith("test"))


def compatibility_faults(root: Path = ROOT) -> list[str]:
    """Find rows with an empty cell, and rows that name no test or one that does not exist."""
    found = []
    for row in rows(root):
        where = f"{COMPATIBILITY}:{row.line}: {row.item}"
        if row.status not in STATUSES:
            found.append(f"{where}: the status is {row.status!r}; it must be one of {', '.join(sorted(STATUSES))}")
        tests = re.findall(r"`([^`]+)`", row.test)
        if not row.item or not row.ours:
            found.append(f"{where}: a cell is empty")
        if not tests:
            found.append(f"{where}: no test is named")
        for name in tests:
            file, _, test = name.partition("::")
            if not (root / file).is_file():
                found.append(f"{where}: names {file}, which does not exist")
            elif test and test.split("[")[0] not in test_names(root / file):
                found.append(f"{where}: names {name}, which does not exist")
    return found


def stories(root: Path = ROOT) -> set[str]:
    """Return the tests that are marked as stories, as `file::test_x`."""
    found = set()
    for path in root.glob("tests/**/test_*.py"):
        text = path.read_text(encoding="utf-8")
        if "mark.story" not in text:
            continue
        for node in ast.parse(text).body:
            marks = getattr(node, "decorator_list", [])
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "mark.story" in "".join(
                map(ast.unparse, marks)
            ):
                found.add(f"{path.relative_to(root).as_posix()}::{node.name}")
    return found


def map_faults(root: Path = ROOT) -> list[str]:
    """Find stories and areas that the page of tests lacks or names wrongly, and areas that no workflow runs."""
    text = (root / TEST_MAP).read_text(encoding="utf-8")
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    promises = [row for row in cells if len(row) == 3 and row[1].startswith("`tests/")]
    named = {row[1].strip("`").partition("[")[0] for row in promises}
    areas = {area for row in promises for area in re.findall(r"`([a-z-]+)`", row[-1])}
    listed = {row[0].strip("`") for row in cells[cells.index(["Area", "Code", "What its proofs add"]) + 2 :]}
    weekly = set(re.findall(r"proofs AREA=([a-z-]+)", (root / WEEKLY).read_text(encoding="utf-8")))
    marked = stories(root)
    return [
        *(f"{TEST_MAP}: {name} is not marked as a story" for name in sorted(named - marked)),
        *(f"{TEST_MAP}: lacks the story {name}" for name in sorted(marked - named)),
        *(f"{TEST_MAP}: {area} is no area" for area in sorted((areas | listed) - AREAS.keys())),
        *(f"{TEST_MAP}: lacks the area {area}" for area in sorted(AREAS.keys() - listed)),
        *(f"{WEEKLY}: does not run the area {area}" for area in sorted(AREAS.keys() - weekly)),
    ]


def machine_paths(root: Path = ROOT) -> list[str]:
    """Find absolute paths of somebody's machine."""
    found = []
    for path in tracked(root):
        if path.suffix not in {".md", ".py", ".toml", ".yml", ".yaml", ".sh", ".txt", ""}:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        for number, line in enumerate(text.splitlines(), 1):
            if hit := MACHINE_PATH.search(line):
                found.append(f"{path.relative_to(root)}:{number}: {hit.group()} is a path of one machine")
    return found


def unfinished(root: Path = ROOT) -> list[str]:
    """Find words that say that something is not done."""
    return [
        f"{path.relative_to(root)}:{number}: unfinished: {line.strip()[:80]}"
        for path in tracked(root)
        if path.suffix in {".py", ".md"} and path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]


def make_targets(root: Path = ROOT) -> set[str]:
    """Return the targets of the Makefile."""
    text = (root / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE))


@functools.cache
def _command(name: str) -> Any:
    """Return a command with its options; made once, because it takes a tenth of a second."""
    return cli.Root.load(name)


def _options(command: Any) -> set[str]:
    """Return the options of a command, in all their spellings."""
    own = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return own | {"--help", "-h"}


def command_fault(words: list[str]) -> str | None:
    """Return what of a `tunefleet` command line does not exist, if anything: a command or an option.

    A `{…}` where a command is wanted is put in when the text is made, and may be any.
    """
    line = f"`tunefleet {' '.join(words)}`"
    if words[0].startswith("-"):
        command: Any = typer.main.get_command(cli.app)
    elif words[0] in {entry.name for entry in cli.Root.table}:
        command, words = _command(words[0]), words[1:]
    else:
        return None if words[0].startswith("{") else f"{line}: {words[0]} is no command"
    for word in words:
        if word == "--" or (word.startswith("{") and hasattr(command, "commands")):
            return None  # what follows is another program's, or not known
        if word.startswith("-"):
            if word.partition("=")[0] not in _options(command):
                return f"{line}: {word} is no option of {command.name}"
        elif hasattr(command, "commands"):
            if word not in command.commands:
                return f"{line}: {word} is no command"
            command = command.commands[word]
    return None


def command_lines(text: str) -> list[list[str]]:
    """Return the words after `tunefleet` of every command line in a page's code."""
    code = "\n".join([*FENCE.findall(text), *re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCE.sub("", text))])
    lines = (re.split(r"  #|\$\(|[|<>;&]", line)[0] for line in COMMAND.findall(code))
    return [[word for word in line.split() if word != "…"] for line in lines]


def text_commands(code: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line of each text of a module that has a `tunefleet` command line, and the words after `tunefleet`."""
    nodes: list[ast.AST] = [ast.parse(code)]
    while nodes:
        node = nodes.pop()
        text = text_of(node) if isinstance(node, ast.Constant | ast.JoinedStr) else None
        if text is None:
            nodes += ast.iter_child_nodes(node)
            continue
        for found in TEXT_COMMAND.finditer(text):
            line = re.split(r"  #|\$\(|[|<>;&]", found["quoted"] or found["bare"])[0]
            words = [word for word in line.rstrip(".,)").split() if word != "…"]
            if words and tuple(words) not in NO_COMMANDS:
                yield getattr(node, "lineno", 0), words


def other_texts(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield name and text of the page's sources and of what lies in `deploy/`, `examples/` and `scripts/`."""
    for path in tracked(root):
        name = path.relative_to(root).as_posix()
        generated = name.endswith("/schema.d.ts") or ".test." in name
        if name.startswith(OTHERS) and path.suffix not in {".md", ".py", ".png", ".ico"} and not generated:
            yield name, path.read_text(encoding="utf-8", errors="ignore")


def unknown_other_commands(root: Path = ROOT) -> list[str]:
    """Find `tunefleet` commands or options in the page, in `deploy/`, `examples/` and `scripts/` that do not exist."""
    found = []
    for name, text in other_texts(root):
        for match in OTHER_COMMAND.finditer(text):
            line = re.split(r"  #|\$\(|[|<>;&]|\. |, ", match["line"])[0]
            if fault := command_fault(line.rstrip(".,):").split()):
                found.append(f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {fault}")
    return found


def missing_paths(root: Path = ROOT) -> list[str]:
    """Find files of this repository that a document, a text of the code or the page names, and that do not exist."""
    texts = {path.relative_to(root).as_posix(): path for path in documents(root)}
    texts |= {path.relative_to(root).as_posix(): path for path in root.glob("src/tunefleet/**/*.py")}
    named = [(name, path.read_text(encoding="utf-8")) for name, path in texts.items() if name != COMPATIBILITY]
    return sorted({
        f"{name}: names {match['path']}, which does not exist"
        for name, text in [*named, *other_texts(root)]
        for match in NAMED_PATH.finditer(text)
        if match["path"] not in NOT_HERE and not (root / match["path"]).exists()
    })  # fmt: skip


def unknown_text_commands(root: Path = ROOT) -> list[str]:
    """Find `tunefleet` commands or options, and `make` targets, in texts of the code that do not exist."""
    targets = make_targets(root)
    unknown = [
        f"{path.relative_to(root)}: `make {name}` is no target"
        for path in sorted(root.glob("src/tunefleet/**/*.py"))
        for name in re.findall(r"`make ([a-z][a-z-]*)", path.read_text(encoding="utf-8"))
        if name not in targets
    ]
    return unknown + [
        f"{path.relative_to(root)}:{line}: {fault}"
        for path in sorted(root.glob("src/tunefleet/**/*.py"))
        for line, words in text_commands(path.read_text(encoding="utf-8"))
        if (fault := command_fault(words))
    ]


def unknown_commands(root: Path = ROOT) -> list[str]:
    """Find `make` targets and `tunefleet` commands or options in documents that do not exist."""
    targets = make_targets(root)
    found = []
    for page in documents(root):
        if page.name == "compatibility.md":
            continue
        text = page.read_text(encoding="utf-8")
        where = page.relative_to(root)
        used = set(MAKE.findall(text))
        found += [f"{where}: `make {name}` is no target" for name in sorted(used - targets)]
        faults = (command_fault(words) for words in command_lines(text))
        found += [f"{where}: {fault}" for fault in faults if fault]
    return found


def undocumented_variables(root: Path = ROOT) -> list[str]:
    """Find variables of the settings that a reader of the documents would not meet."""
    page = (root / "docs/reference/configuration.md").read_text(encoding="utf-8")
    example = (root / ".env.example").read_text(encoding="utf-8")
    found = []
    for _, own in write_reference.variables():
        for variable in own:
            if not variable.meaning:
                found.append(f"src/tunefleet/settings: {variable.name} has no docstring")
            if f"`{variable.name}`" not in page:
                found.append(f"docs/reference/configuration.md lacks {variable.name}: run `make docs`")
            if f"#{variable.name}=" not in example:
                found.append(f".env.example lacks {variable.name}: run `make docs`")
    return found


CHECKS = (
    broken_links,
    compatibility_faults,
    machine_paths,
    map_faults,
    missing_paths,
    unfinished,
    unknown_commands,
    unknown_other_commands,
    unknown_text_commands,
    undocumented_variables,
)


def main() -> int:
    """Print all faults; return the exit code."""
    found = [fault for check in CHECKS for fault in check()]
    for fault in found:
        print(fault)
    stale = write_reference.main(["--check"])
    return 1 if found or stale else 0


if __name__ == "__main__":
    sys.exit(main())
