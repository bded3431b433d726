from __future__ import annotations

import ast
import subprocess
import sys
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
    assert {name: f"tunefleet.spec.{home}" for name, home in spec._HOMES.items()} == promised
    assert sorted(promised) == sorted(spec.__all__)
    assert all(getattr(spec, name) is not None for name in promised)


def test_no_validator_is_built_at_import() -> None:
    """A process sees a few of some three hundred blocks, and the settings of one kind of process."""
    asked = (
        "from pydantic import BaseModel\n"
        "import tunefleet.settings, tunefleet.spec.campaign, tunefleet.spec.tasks, tunefleet.spec.workflow\n"
        "found = list(BaseModel.__subclasses__())\n"
        "for kind in found: found += kind.__subclasses__()\n"
        "ours = [kind for kind in found if kind.__module__.startswith(('tunefleet.settings', 'tunefleet.spec'))]\n"
        "print(len(ours), *(kind.__name__ for kind in ours if kind.__pydantic_complete__))\n"
    )
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    count, *built = ran.stdout.split()
    assert int(count) > 150
    assert built == ["FederationSpec"], "FastAPI looks into the bodies of its routes"
