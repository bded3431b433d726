from __future__ import annotations

import ast
from pathlib import Path

from tunefleet import spec


def test_every_name_that_is_promised_is_found_in_the_module_that_says_it() -> None:
    tree = ast.parse(Path(spec.__file__).read_text(encoding="utf-8"))
    promised = {
        alias.name: found.module
        for found in ast.walk(tree)
        if isinstance(found, ast.ImportFrom) and (found.module or "").startswith("tunefleet.spec.")
        for alias in found.names
    }
    assert {name: f"tunefleet.spec.{home}" for name, home in spec._MODULES.items()} == promised
    assert sorted(promised) == sorted(spec.__all__)
    assert all(getattr(spec, name) is not None for name in promised)
