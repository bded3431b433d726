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


AVERAGE = """
import json, tempfile
from pathlib import Path
import numpy as np
from tunefleet.federation import CONFIG, TENSORS, AdapterFile, Update, aggregate, read_config, write_tensors
from tunefleet.spec.federating import StrategySpec

root = Path(tempfile.mkdtemp())
config = {"peft_type": "LORA", "base_model_name_or_path": "x", "r": 1, "lora_alpha": 1, "target_modules": ["q"]}
names = [f"base_model.model.q.lora_{side}.weight" for side in "AB"]
updates = []
for number, value in enumerate((1.0, 4.0)):
    path = root / f"{number}.safetensors"
    write_tensors(path, {names[0]: np.full((1, 2), value, np.float32), names[1]: np.full((2, 1), value, np.float32)})
    updates.append(Update(str(number), path, read_config(json.dumps(config).encode()), 1))
(root / "out").mkdir()
aggregate(updates, StrategySpec(), into=root / "out")
with AdapterFile(root / "out" / TENSORS) as file:
    print(file.whole(names[0])[0, 0])
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
        "import tunefleet; tunefleet.Client; tunefleet.AsyncClient; tunefleet.FederatedClient",
        "import tunefleet.cli.main",
        "import tunefleet.server.app, tunefleet.server.process",
        "import tunefleet.services, tunefleet.store, tunefleet.placement, tunefleet.spec, tunefleet.artifacts",
        "import tunefleet.federation, tunefleet.services.federation.keeper, tunefleet.services.federation.examining",
        "import tunefleet.federation, tunefleet.evaluation.comparing, tunefleet.publishing.targets",
        "import tunefleet.campaign.keeper, tunefleet.campaign.providers.local",
        "import tunefleet.worker, tunefleet.worker.__main__, tunefleet.executors.echo, tunefleet.executors.sft",
    ],
)
def test_what_runs_without_torch(code: str) -> None:
    done = _run(code)
    assert done.returncode == 0, done.stderr[-2000:]


def test_who_averages_nothing_does_not_wait_for_numpy() -> None:
    there = "[name for name in ('numpy', 'tunefleet.federation') if name in sys.modules]"
    done = _run(f"import tunefleet.cli.main, tunefleet.cli.federation, tunefleet.server.app\nprint({there})")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "[]"


def test_a_plain_server_averages_adapters() -> None:
    done = _run(AVERAGE)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "2.5"


def test_the_command_shows_its_help_without_torch() -> None:
    code = "import sys; sys.argv = ['tunefleet', '--help']; from tunefleet.cli.main import main; main()"
    done = _run(code)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "submit" in done.stdout
