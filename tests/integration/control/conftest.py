"""An environment that has the training libraries and neither Tunefleet nor pydantic: somebody else's."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.libraries import required

_NOT_THERE = ("tunefleet", "pydantic", "editable", "coverage", "__pycache__")
# A plain Trainer imports these if they are there, and does not need them: that takes longer than torch itself.
_LEFT_OUT = ("bitsandbytes", "datasets", "pandas", "peft", "scipy", "sklearn")


@pytest.fixture(scope="session")
def foreign_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of such an environment; its packages are links to ours, less those that it lacks."""
    required("torch", "transformers")
    folder = tmp_path_factory.mktemp("foreign")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    theirs = Path(subprocess.run([str(python), "-c", asked], capture_output=True, check=True, text=True).stdout.strip())
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        lacking = any(name in package.name.lower() for name in (*_NOT_THERE, *_LEFT_OUT))
        if not lacking and package.suffix != ".pth" and not (theirs / package.name).exists():
            (theirs / package.name).symlink_to(package)
    for name in ("tunefleet", "pydantic"):
        assert subprocess.run([str(python), "-c", f"import {name}"], capture_output=True, check=False).returncode
    return python
