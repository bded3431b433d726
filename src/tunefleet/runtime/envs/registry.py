"""Where environments lie, and how each of them stands; reads a stamp, runs nothing."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from tunefleet.runtime.envs.catalog import FAMILIES, Family, Machine, digest, family
from tunefleet.runtime.gpu.info import read_gpus
from tunefleet.schemas.base import Message
from tunefleet.settings import ProcessSettings, load
from tunefleet.trainer_control.files import read_json

State = Literal["ready", "missing", "unfinished", "stale"]

STAMP: Final = "tunefleet-env.json"


class Stamp(Message):
    """What was made, written when it was whole."""

    family: str
    machine: Machine
    lock: str
    python: str
    base: str | None = None
    made_at: float


@dataclass(frozen=True, slots=True)
class Environment:
    """One environment of this machine, made or not."""

    family: Family
    root: Path
    machine: Machine
    state: State
    why: str | None = None

    @property
    def name(self) -> str:
        """The family's name."""
        return self.family.name

    @property
    def bin_dir(self) -> Path:
        """Where its programs lie."""
        return self.root / ("Scripts" if os.name == "nt" else "bin")

    @property
    def python(self) -> str:
        """Path of its interpreter."""
        return str(self.bin_dir / ("python.exe" if os.name == "nt" else "python"))

    @property
    def ready(self) -> bool:
        """Whether jobs can run in it."""
        return self.state == "ready"

    @property
    def lock_file(self) -> Path | None:
        """What its packages are held against; `None` if the family does not run on such a machine."""
        return self.family.lock_file(self.machine)


def envs_dir() -> Path:
    """Return the folder of all environments."""
    return load(ProcessSettings).envs_folder


def machine() -> Machine:
    """Say whether this machine has a GPU that the driver shows."""
    return "gpu" if read_gpus() else "cpu"


def at(name: str, where: Machine | None = None) -> Environment:
    """Return how an environment stands."""
    found = family(name)
    root = envs_dir() / name
    stamp = _stamp(root)
    target = where or (stamp.machine if stamp else machine())
    if stamp is None:
        return Environment(found, root, target, "unfinished" if root.is_dir() else "missing")
    why = _outdated(found, target, stamp)
    made = Environment(found, root, target, "stale" if why else "ready", why)
    return made if Path(made.python).exists() else Environment(found, root, target, "stale", "its interpreter is gone")


def reason(name: str) -> str | None:
    """Return why jobs cannot run in an environment, as a sentence with the way out; `None` if they can."""
    found = at(name)
    if found.ready:
        return None
    if found.family.lock_file(found.machine) is None:
        return f"The environment {name!r} needs a GPU, and this machine shows none."
    if found.state == "stale":
        return f"The environment {name!r} is out of date ({found.why}): tunefleet env create {name}."
    state = "missing" if found.state == "missing" else "not finished"
    return f"The environment {name!r} is {state}: tunefleet env create {name}."


def ready() -> tuple[str, ...]:
    """Return the environments in which jobs can run here; vLLM may be installed beside Tunefleet instead."""
    beside = ("vllm",) if find_spec("vllm") is not None else ()
    # What has no stamp is not asked further: that looks at the GPUs, and this is asked again and again.
    made = {name for name in FAMILIES if (envs_dir() / name / STAMP).exists()}
    return tuple(name for name in FAMILIES if name in beside or (name in made and at(name).ready))


def pip_of(python: str) -> list[str]:
    """Return the command that is pip for an interpreter: ours, told to serve it; its own where we have none."""
    ours = ["--python", python] if find_spec("pip") is not None else []
    return [sys.executable if ours else python, "-m", "pip", "--disable-pip-version-check", *ours]


def _stamp(root: Path) -> Stamp | None:
    try:
        return Stamp.model_validate(read_json(root / STAMP))
    except ValidationError:
        return None


def _outdated(found: Family, where: Machine, stamp: Stamp) -> str | None:
    lock = found.lock_file(where)
    if lock is None or stamp.machine != where or stamp.lock != digest(lock):
        return "its lock has changed"
    if stamp.python != platform.python_version():
        return f"it was made with Python {stamp.python}, this is {platform.python_version()}"
    if found.layer and stamp.base != sys.prefix:
        return f"it was made over {stamp.base}, this is {sys.prefix}"
    return None
