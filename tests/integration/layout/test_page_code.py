"""Python in the pages imports and calls what there is."""

from __future__ import annotations

import ast
import re

import pytest

import tunefleet
from tests.unit.house.test_reference import PAGES, ROOT
from tunefleet.client.resources import Run


def _python_in_pages() -> list[object]:
    found = []
    for page in PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        name = page.relative_to(ROOT)
        found += [pytest.param(block, id=f"{name}:{number}") for number, block in enumerate(blocks)]
    return found


@pytest.mark.proof
@pytest.mark.parametrize("block", _python_in_pages())
def test_python_in_a_page_imports_and_calls_what_exists(block: str) -> None:
    tree = ast.parse(block)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tunefleet"):
            exec(ast.unparse(node), {})
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"client", "run"}:
            # What a client has is made with its connection, so the class alone does not show it.
            owner = tunefleet.Client("http://127.0.0.1:1", "key") if node.value.id == "client" else Run
            assert hasattr(owner, node.attr), ast.unparse(node)
