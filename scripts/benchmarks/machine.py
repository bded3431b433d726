"""What the figures were taken on: the machine, its disk, and the versions of what runs there."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import subprocess
import tempfile
import time
from importlib import metadata
from pathlib import Path

import psutil

Machine = dict[str, str | int | float]
SYNCS = 50


def described(folder: Path) -> Machine:
    """Describe this machine; `folder` lies on the disk whose syncs are timed."""
    return {
        "processor": processor(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "fsync_ms": round(sync_ms(folder), 3),
        **{name: version for name in ("torch", "transformers", "peft") if (version := version_of(name))},
    }


def same(one: Machine, other: Machine) -> bool:
    """Tell whether two descriptions are of the same machine; its disk is never timed the same twice."""
    return {**one, "fsync_ms": 0} == {**other, "fsync_ms": 0}


def processor() -> str:
    """Return the model of the processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def version_of(distribution: str) -> str:
    """Return the version of something that is installed here; empty if it is not."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def sync_ms(folder: Path) -> float:
    """Return the median time that 4 KiB take to the disk."""
    taken = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)


def git(*words: str, root: Path) -> str:
    """Return what git says."""
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def source(root: Path, benchmark: str) -> str:
    """Name what is measured: the tree of `src` and the benchmark's own file; it ends in `+` where that is changed."""
    told = [git("rev-parse", f"HEAD:{path}", root=root)[:12] for path in ("src", f"bench/{benchmark}.py")]
    changed = git("status", "--porcelain", "--", "src", f"bench/{benchmark}.py", root=root)
    return "-".join(told) + ("+" if changed else "")
