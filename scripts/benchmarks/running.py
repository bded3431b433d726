"""Run benchmarks one after the other, each on a machine that is otherwise idle, within its time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil

from scripts.benchmarks import machine
from scripts.benchmarks.catalogue import BENCH, ROOT, Benchmark

IDLE_PERCENT: Final = 10.0
LOOK_S: Final = 3.0
END_S: Final = 30.0


def wait_for_quiet(patience_s: float) -> float:
    """Wait until others leave the processors alone; return what they take, in percent, when it goes on."""
    deadline, said = time.monotonic() + patience_s, False
    while (busy := psutil.cpu_percent(LOOK_S)) > IDLE_PERCENT:
        if time.monotonic() > deadline:
            print(f"-> the machine is busy ({busy:.0f} %): the figures will say so", flush=True)
            return busy
        if not said:
            print(f"-> waiting for a quiet machine: {busy:.0f} % of its processors are taken", flush=True)
            said = True
    return busy


def run(one: Benchmark, into: Path, *, quick: bool, force: bool, patience_s: float) -> str | None:
    """Run a benchmark and leave what it found in `into`; one that was measured so already is not run again.

    Returns:
        What went wrong; None if nothing did. A broken budget is in the result, and not here.
    """
    file, source = into / f"{one.name}.json", machine.source(ROOT, one.name)
    here = machine.described(into)
    if not force and not quick and kept(file, source, here):
        print(f"== {one.name}: measured already on this machine and this source; FORCE=1 runs it again", flush=True)
        return None
    print(f"== {one.name}: at most {one.limit_s / 60:.0f} min", flush=True)
    busy = 0.0 if quick else wait_for_quiet(patience_s)
    fresh, began, when = into / f"{one.name}.new", time.monotonic(), datetime.now(UTC)
    fresh.unlink(missing_ok=True)
    words = [sys.executable, str(BENCH / f"{one.name}.py"), "--json", str(fresh), *(["--quick"] if quick else [])]
    status = _bounded(words, one.limit_s)
    took_s = time.monotonic() - began
    print(f"== {one.name}: {took_s:.0f} s", flush=True)
    if status is None:
        return f"was ended after {one.limit_s:.0f} s"
    if not fresh.exists():
        return f"ended with {status} and no result"
    found: dict[str, Any] = json.loads(fresh.read_text(encoding="utf-8"))
    fresh.unlink()
    found["run"] = {
        "source": source, "commit": machine.git("rev-parse", "--short=12", "HEAD", root=ROOT),
        "version": machine.version_of("tunefleet"), "at": when.isoformat(timespec="seconds"), "took_s": round(took_s),
        "others_percent": round(busy), "machine": here,
    }  # fmt: skip
    file.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    if status and not any(row["verdict"] == "BROKEN" for row in found["rows"]):
        return f"ended with {status}: a limit of its own is broken, as its lines say"
    return None


def kept(file: Path, source: str, here: machine.Machine) -> bool:
    """Tell whether a result is of this source, unchanged, and of this machine."""
    if not file.exists() or source.endswith("+"):
        return False
    run_: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["run"]
    return run_["source"] == source and machine.same(run_["machine"], here)


def _bounded(words: list[str], limit_s: float) -> int | None:
    """Run a process within a time; return its exit status, or None if it had to be ended."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    # Where Python is told to write no bytecode, each of our processes would compile the package, and no peer's its own.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process as Ctrl-C does, so that it ends what it started; then what is left of its group."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
