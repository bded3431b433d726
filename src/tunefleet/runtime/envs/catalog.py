"""The available environments, and their locks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tunefleet.errors import NotFoundError

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
