"""Uses all that a plain install promises, in a process that finds nothing else; prints what happened as JSON."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import pkgutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

MISSING = ("torch", "transformers", "peft", "safetensors", "pytest")
OTHERS = {"trainer_control", "workloads"}
"""They run in a trainer's process, where the libraries are."""


def closure(name: str, extras: tuple[str, ...], seen: set[tuple[str, tuple[str, ...]]]) -> None:
    """Add what a distribution requires, with what that requires."""
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    try:
        requires = distribution(name).requires or []
    except PackageNotFoundError:
        return
    for need in map(Requirement, requires):
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras or ("",)):
            closure(canonicalize_name(need.name), tuple(sorted(need.extras)), seen)


class Blocker(MetaPathFinder):
    """Refuses every installed package that the plain dependencies do not bring."""

    def __init__(self) -> None:
        seen: set[tuple[str, tuple[str, ...]]] = set()
        closure("tunefleet", (), seen)
        self._allowed = {name for name, _ in seen}
        self._owners = packages_distributions()

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        names = self._owners.get(fullname.partition(".")[0])
        if names and not self._allowed & {canonicalize_name(name) for name in names}:
            raise ModuleNotFoundError(f"not in a plain install: {fullname}", name=fullname)


def blocked() -> Iterator[str]:
    """Yield the packages of `MISSING` that cannot be imported, as it must be."""
    for name in MISSING:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if "not in a plain install" in str(error):
                yield name


def help_page() -> str:
    from tunefleet.cli.main import main

    sys.argv = ["tunefleet", "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main()
    return said.getvalue()


def early() -> list[str]:
    """Return what a command line and a server import though they average nothing."""

    return [name for name in ("numpy", "tunefleet.federation") if name in sys.modules]


def modules() -> Iterator[str]:
    import tunefleet

    for package in pkgutil.iter_modules(tunefleet.__path__, "tunefleet."):
        yield package.name
        if package.ispkg and package.name.partition(".")[2] not in OTHERS:
            folder = importlib.import_module(package.name).__path__
            found = pkgutil.walk_packages(folder, f"{package.name}.")
            # Alembic executes its scripts; they cannot be imported elsewhere.
            yield from (module.name for module in found if ".migrations." not in module.name)


def failures() -> dict[str, str]:
    """Import every module; return why some cannot be imported."""
    import tunefleet
    from tunefleet.errors import TunefleetError

    found = {}
    for name in modules():
        try:
            importlib.import_module(name)
        except (ImportError, TunefleetError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    assert all((tunefleet.Client, tunefleet.AsyncClient, tunefleet.FederatedClient))
    return found


def average() -> float:
    """Average two adapters."""
    import numpy as np

    from tunefleet.federation import TENSORS, AdapterFile, Update, aggregate, read_config, write_tensors
    from tunefleet.spec.options.federation_options import StrategySpec

    config = {"peft_type": "LORA", "base_model_name_or_path": "x", "r": 1, "lora_alpha": 1, "target_modules": ["q"]}
    names = [f"base_model.model.q.lora_{side}.weight" for side in "AB"]
    updates = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number, value in enumerate((1.0, 4.0)):
            path = root / f"{number}.safetensors"
            shapes = {names[0]: (1, 2), names[1]: (2, 1)}
            write_tensors(path, {name: np.full(shape, value, np.float32) for name, shape in shapes.items()})
            updates.append(Update(str(number), path, read_config(json.dumps(config).encode()), 1))
        (root / "out").mkdir()
        aggregate(updates, StrategySpec(), into=root / "out")
        with AdapterFile(root / "out" / TENSORS) as file:
            return float(file.whole(names[0])[0, 0])


blocker = Blocker()
for name in [name for name in sys.modules if name.partition(".")[0] == "packaging"]:
    del sys.modules[name]
sys.meta_path.insert(0, blocker)
print(
    json.dumps(
        {"help": help_page(), "early": early(), "failures": failures(), "average": average(), "blocked": [*blocked()]}
    )
)
