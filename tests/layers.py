"""Chooses what a run collects: `--layer default` for `make test`, `--layer proofs` and `--area` for `make proofs`.

A file whose tests are all proofs is not even imported for the default layer: every test worker would pay for that.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.areas import AREAS, area_of

LAYERS: Final = ("default", "proofs")
_FILE_MARKS: Final = re.compile(r"^pytestmark = (.*?)^(?=[^\s\])])", re.MULTILINE | re.DOTALL)


def add_options(parser: pytest.Parser) -> None:
    """Add both options."""
    parser.addoption("--layer", choices=LAYERS, help="Run this layer of the tests only (docs/reference/tests.md).")
    parser.addoption("--area", choices=sorted(AREAS), help="Run the tests of this area of the code only.")


class Layers:
    """Leaves out what is not of the layer and area that were asked for.

    Args:
        config: With both options.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._layer: str | None = config.getoption("--layer")
        self._area: str | None = config.getoption("--area")

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out files of which no test would run."""
        if not collection_path.match("test_*.py"):
            return None
        if self._area is not None and area_of(self._name(collection_path)) != self._area:
            return True
        if self._layer is None:
            return None
        text = collection_path.read_text(encoding="utf-8")
        if self._layer == "proofs":
            return "mark.proof" not in text or None
        return ("mark.story" not in text and is_all_proofs(text)) or None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out tests, and refuse a proof that no area has."""
        proofs = {self._name(item.path) for item in items if _has(item, "proof")}
        if homeless := sorted(path for path in proofs if area_of(path) is None):
            raise pytest.UsageError(f"No area in tests/areas.py has {', '.join(homeless)}.")
        if self._layer is not None:
            chosen = [item for item in items if layer_of(item) == self._layer]
            config.hook.pytest_deselected(items=[item for item in items if layer_of(item) != self._layer])
            items[:] = chosen

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()


def layer_of(item: pytest.Item) -> str | None:
    """Return the layer of a test; `None` for one that needs a large environment."""
    if _has(item, "heavy"):
        return None
    return "proofs" if _has(item, "proof") and not _has(item, "story") else "default"


def is_all_proofs(text: str) -> bool:
    """Return whether a test file marks all of its tests as proofs."""
    found = _FILE_MARKS.search(text)
    return found is not None and "mark.proof" in found[1]


def _has(item: pytest.Item, mark: str) -> bool:
    # `keywords` also has the names of the folders above the tests.
    return item.get_closest_marker(mark) is not None
