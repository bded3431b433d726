"""Hold the code's layout: sizes of folders and files, names of things, no circles. Known faults may only lessen."""

from __future__ import annotations

import argparse
import ast
import math
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src" / "tunefleet"
MAX_FILES: Final = 25
MIN_LINES: Final = 40
MAX_LINES: Final = 600
MAX_STEMS: Final = 3
MAX_PACKAGE_FILES: Final = 1_060
"""In the whole package: a new file needs a subject of its own, or takes the place of fragments."""
MAX_FUNCTION_LINES: Final = 45
"""Of which 95 of 100 functions have no more."""
ALSO: Final = ("scripts", "bench", "tests")
"""Beside the package: their files are not too long either."""
COMMON_STEMS: Final = frozenset({"__init__", "__main__", "base", "models", "run", "service", "status", "views"})
"""Names that say what a file is in whatever package it lies."""
NOUNS_IN_ING: Final = frozenset({
    "autoscaling", "batching", "chunking", "clipping", "coalescing", "detokenization", "embedding", "formatting",
    "listing",
    "logging", "merging", "packing", "pooling", "publishing", "routing", "sampling", "scheduling", "settings",
    "sharding", "streaming", "testing", "tracing", "training",
})  # fmt: skip
"""Names of processes in the field's own words."""
NICKNAMES: Final = frozenset({
    "bare", "book", "courier", "desk", "found", "given", "here", "kept", "light", "many", "once", "place", "places",
    "quiet", "room", "said", "shown", "talks", "together", "told", "words",
})  # fmt: skip
KNOWN: Final[dict[str, int]] = {
    "folders with too many files": 0,
    "packages with too many files": 0,
    "files that are too short": 0,
    "files that are too long": 0,
    "functions that are too long": 0,
    "names that are no things": 0,
    "code after the main guard": 0,
    "stems that repeat": 0,
    "modules in circles": 0,
}
"""How many faults of each kind there are still: `make check` fails where there are more, and where there are fewer, so
that the number here is lowered."""


class Fault(NamedTuple):
    """Something that is wrong.

    Args:
        kind: A key of `KNOWN`.
        text: Where, and what.
    """

    kind: str
    text: str


def faults(source: Path = SOURCE) -> Iterator[Fault]:
    """Yield everything that is wrong below a package's folder."""
    files = sorted(path for path in source.rglob("*.py") if path.parent.name != "versions")
    stems: dict[str, list[Path]] = defaultdict(list)
    folders: dict[Path, int] = defaultdict(int)
    for path in files:
        where = path.relative_to(source)
        stems[path.stem].append(where)
        folders[where.parent] += path.stem != "__init__"
        yield from _file_faults(path, where)
    if (total := sum(1 for _ in source.rglob("*.py"))) > MAX_PACKAGE_FILES:
        yield Fault("packages with too many files", f"{total} files; at most {MAX_PACKAGE_FILES}: merge fragments")
    for folder, count in sorted(folders.items()):
        if count > MAX_FILES:
            yield Fault("folders with too many files", f"{folder}: {count} files; at most {MAX_FILES}")
    for stem, places in sorted(stems.items()):
        if len(places) > MAX_STEMS and stem not in COMMON_STEMS:
            yield Fault("stems that repeat", f"{stem}.py: {', '.join(map(str, places))}")
    yield from _too_long_functions(files, source)
    yield from _circles(source)


def _file_faults(path: Path, where: Path) -> Iterator[Fault]:
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    if lines < MIN_LINES and not path.stem.startswith("__") and not _is_entry_point(path, text):
        yield Fault("files that are too short", f"{where}: {lines} lines; merge it with what uses it")
    if lines > MAX_LINES:
        yield Fault("files that are too long", f"{where}: {lines} lines; at most {MAX_LINES}")
    # With `python -m`, what follows the guard does not exist yet while `main` runs.
    if re.search(r"^\S", text.partition('\nif __name__ == "__main__":')[2], re.MULTILINE):
        yield Fault("code after the main guard", f"{where}: move the guard to the end")
    if not is_noun(path.stem):
        yield Fault("names that are no things", f"{where}: name a thing in the field's words (docs/glossary.md)")


def _is_entry_point(path: Path, text: str) -> bool:
    # Alembic finds its own by that name.
    return '__name__ == "__main__"' in text or path.name == "env.py"


def _circles(source: Path) -> Iterator[Fault]:
    for circle in circles(imports(source)):
        for module in circle:
            yield Fault("modules in circles", f"{module}: in a circle of {len(circle)}: {', '.join(circle[:6])}")


def is_noun(stem: str) -> bool:
    """Whether a file's name is a thing or a process of the field, as far as its letters tell."""
    last = stem.rsplit("_", 1)[-1]
    return stem not in NICKNAMES and (not last.endswith("ing") or last in NOUNS_IN_ING)


def _too_long_functions(files: Sequence[Path], source: Path) -> Iterator[Fault]:
    found = sorted(
        (node.end_lineno - node.lineno + 1, f"{path.relative_to(source)}:{node.lineno} {node.name}")
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    )
    if found and (p95 := found[math.ceil(0.95 * len(found)) - 1][0]) > MAX_FUNCTION_LINES:
        longest = ", ".join(f"{place} ({lines})" for lines, place in found[:-9:-1])
        yield Fault("functions that are too long", f"95 of 100 have up to {p95} lines; the longest: {longest}")


def long_files(root: Path = ROOT) -> Iterator[Fault]:
    """Yield the files beside the package that are too long."""
    for path in sorted(path for folder in ALSO for path in (root / folder).rglob("*.py")):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:
            yield Fault("files that are too long", f"{path.relative_to(root)}: {lines} lines; at most {MAX_LINES}")


def imports(source: Path = SOURCE) -> dict[str, set[str]]:
    """Return which modules each module imports: at its head, for types alone, and inside functions."""
    names = {_module(path, source): path for path in source.rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                parts = package.split(".")
                base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
                from_ = ".".join(part for part in (base, node.module) if part)
                for each in node.names:
                    full = f"{from_}.{each.name}"
                    found.add(full if full in names else from_)
        graph[name] = {each for each in found if each in names and each != name}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, however far around; the package itself is left out."""
    order: list[str] = []
    seen: set[str] = set()
    backwards: dict[str, set[str]] = defaultdict(set)
    for name, targets in graph.items():
        for target in targets:
            backwards[target].add(name)
    for name in graph:
        _visit(name, graph, seen, order)
    groups, seen = [], set()
    for name in reversed(order):
        group: list[str] = []
        _visit(name, backwards, seen, group)
        if len(group) > 1:
            groups.append(sorted(group))
    return groups


def _visit(start: str, graph: dict[str, set[str]], seen: set[str], order: list[str]) -> None:
    """Append what can be reached from a module, each after what it reaches."""
    stack = [(start, iter(sorted(graph.get(start, ()))))] if start not in seen else []
    seen.add(start)
    while stack:
        name, rest = stack[-1]
        following = next((each for each in rest if each not in seen), None)
        if following is None:
            order.append(name)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(sorted(graph.get(following, ())))))


def _module(path: Path, source: Path) -> str:
    parts = [source.name, *path.relative_to(source).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Shares(NamedTuple):
    """Of all lines: in docstrings, and with a comment."""

    files: int
    lines: int
    docstrings: float
    comments: float


def shares(source: Path = SOURCE) -> Shares:
    """Return how much of the code explains it."""
    files = list(source.rglob("*.py"))
    lines = documented = commented = 0
    for path in files:
        text = path.read_text(encoding="utf-8")
        lines += len(text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                documented += (node.end_lineno or node.lineno) - node.lineno + 1
        with path.open("rb") as file:
            rows = {token.start[0] for token in tokenize.tokenize(file.readline) if _is_comment(token)}
        commented += len(rows)
    return Shares(len(files), lines, documented / lines, commented / lines)


def _is_comment(token: tokenize.TokenInfo) -> bool:
    return token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:|fmt:|pragma)", token.string)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare what is wrong with what is known; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print every fault, and how much explains the code")
    asked = parser.parse_args(arguments)
    found = [*faults(), *long_files()]
    if asked.list:
        print(*(f"{fault.kind}: {fault.text}" for fault in found), sep="\n")
        told = shares()
        print(
            f"{told.files} files, {told.lines:,} lines, docstrings {told.docstrings:.1%}, comments {told.comments:.1%}"
        )
    wrong = False
    for kind, known in KNOWN.items():
        count = sum(fault.kind == kind for fault in found)
        if asked.list:
            print(f"{count:5}  {kind}")
        elif count > known:
            print(f"{kind}: {count}, and {known} were known; `python -m scripts.check_layout --list` names them")
            wrong = True
        elif count < known:
            print(f"{kind}: {count} are left of {known}: lower the number in scripts/check_layout.py")
            wrong = True
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
