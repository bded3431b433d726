"""A plain `pip install tunefleet` gives CLI, SDK and server, without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Runs in a process of its own: refuses every installed package that the plain dependencies do not bring.
BLOCKER = """
import importlib.abc, re, sys
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

def closure(name, extras, seen):
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    try:
        requires = distribution(name).requires or []
    except PackageNotFoundError:
        return
    for text in requires:
        need = Requirement(text)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras or ("",)):
            closure(canonicalize_name(need.name), tuple(sorted(need.extras)), seen)

seen = set()
closure("tunefleet", (), seen)
allowed = {name for name, _ in seen}
owners = packages_distributions()

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        names = owners.get(fullname.partition(".")[0])
        if names and not allowed & {canonicalize_name(name) for name in names}:
            raise ModuleNotFoundError(f"not in a plain install: {fullname}", name=fullname)
        return None

for name in [name for name in sys.modules if name.partition(".")[0] == "packaging"]:
    del sys.modules[name]
sys.meta_path.insert(0, Blocker())
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"{BLOCKER}\n{code}"], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("module", ["torch", "transformers", "peft", "safetensors", "pytest"])
def test_the_blocker_blocks(module: str) -> None:
    done = _run(f"import {module}")
    assert done.returncode != 0
    assert "not in a plain install" in done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "import tunefleet; tunefleet.Client; tunefleet.AsyncClient",
        "import tunefleet.cli.main",
        "import tunefleet.server.app, tunefleet.server.__main__",
        "import tunefleet.services, tunefleet.store, tunefleet.placement, tunefleet.spec, tunefleet.artifacts",
        "import tunefleet.federation, tunefleet.evaluation.comparing, tunefleet.publishing.targets",
        "import tunefleet.campaign.keeper, tunefleet.campaign.providers.local",
        "import tunefleet.worker, tunefleet.worker.__main__, tunefleet.executors.echo, tunefleet.executors.sft",
    ],
)
def test_what_runs_without_torch(code: str) -> None:
    done = _run(code)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_command_shows_its_help_without_torch() -> None:
    code = "import sys; sys.argv = ['tunefleet', '--help']; from tunefleet.cli.main import main; main()"
    done = _run(code)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "submit" in done.stdout
