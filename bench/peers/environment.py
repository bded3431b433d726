"""Environments for peers whose pins contradict ours: made once beside ours, with pip."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RAY = ("ray==2.60.0",)
FLOWER = ("flwr[simulation]==1.41.0", "safetensors>=0.8", "numpy>=2.0")
NVFLARE = ("nvflare==2.9.0", "numpy>=2.0")
# kombu's transport for Redis imports `packaging` and does not ask for it.
QUEUES = (
    "celery[redis]==5.7.0",
    "dramatiq[redis]==2.2.1",
    "taskiq==0.13.0",
    "taskiq-redis",
    "huey",
    "redis",
    "psycopg[binary]",
    "packaging",
)
"""Celery, Dramatiq, Taskiq and Huey in one environment, with what bare Redis and bare PostgreSQL are spoken to by."""


def interpreter(name: str, requirements: tuple[str, ...]) -> Path:
    """Return the interpreter of a peer's environment; the first call makes it.

    `BENCH_<NAME>_PYTHON` names another one that has what is needed.
    """
    given = os.environ.get(f"BENCH_{name.upper()}_PYTHON")
    if given:
        return Path(given)
    folder = ROOT / f".venv-bench-{name}"
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    wanted = "\n".join(requirements)
    if not ready.exists() or ready.read_text() != wanted:
        print(f"-> installing {requirements[0]} into {folder.name}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements], check=True)
        ready.write_text(wanted)
    return python


def version_of(python: Path, distribution: str) -> str:
    """Return the version of a peer in its environment."""
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    return subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip()
