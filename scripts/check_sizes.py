"""Hold the code to sizes that fit the eye: files up to 500 lines, functions up to 45 at the 95th percentile."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_FILE_LINES = 500
MAX_P95_LINES = 45
ROOT = Path(__file__).resolve().parent.parent
CODE = ("src", "scripts", "bench", "tests")


class Function(NamedTuple):
    """A function and how many lines it has."""

    lines: int
    place: str


def python_files(root: Path, folders: tuple[str, ...] = CODE) -> list[Path]:
    """Return the Python files below `folders`, in order."""
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def functions(path: Path, root: Path) -> Iterator[Function]:
    """Yield every function of a file, nested ones and methods too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            yield Function(node.end_lineno - node.lineno + 1, f"{path.relative_to(root)}:{node.lineno} {node.name}")


def percentile(lines: list[int], share: float) -> int:
    """Return the smallest length that `share` of the functions do not exceed."""
    return sorted(lines)[max(0, math.ceil(share * len(lines)) - 1)] if lines else 0


def faults(root: Path = ROOT) -> list[str]:
    """Return one line for each limit that is broken."""
    found = []
    for path in python_files(root):
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > MAX_FILE_LINES:
            found.append(f"{path.relative_to(root)}: {count} lines; at most {MAX_FILE_LINES} are allowed")
    sizes = [function for path in python_files(root, ("src",)) for function in functions(path, root)]
    p95 = percentile([function.lines for function in sizes], 0.95)
    if p95 > MAX_P95_LINES:
        longest = ", ".join(f"{function.place} ({function.lines})" for function in sorted(sizes, reverse=True)[:8])
        found.append(f"functions: p95 is {p95} lines; at most {MAX_P95_LINES} are allowed; the longest: {longest}")
    return found


def main() -> int:
    """Print the faults; return the exit code."""
    found = faults()
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
