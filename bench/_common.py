"""What several benchmarks need: a port, a server's health, an interval, and a word on whether a budget is kept."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal

import httpx
import numpy as np

Verdict = Literal["kept", "BROKEN", "undecided: the machine is too noisy for this many rounds"]
BROKEN_STATUS: Final = 1
"""Exit status of a benchmark that shows a budget broken; one that is undecided ends with 0 and says so."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % bootstrap interval of the median."""
    draws = np.random.default_rng(0).choice(ratios, size=(10_000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(high)


def percentiles(seconds: list[float], *, scale: float) -> dict[str, float]:
    """Return median and p99 in a unit."""
    low, high = np.percentile(np.array(seconds) * scale, [50, 99])
    return {"p50": float(low), "p99": float(high), "count": len(seconds)}


def verdict(low: float, high: float, budget: float) -> Verdict:
    """Say whether what lies in an interval keeps a budget."""
    if high <= budget:
        return "kept"
    return "BROKEN" if low > budget else "undecided: the machine is too noisy for this many rounds"


def status(*verdicts: Verdict) -> int:
    """Return the exit status of a benchmark with these verdicts."""
    return BROKEN_STATUS if "BROKEN" in verdicts else 0


def answers_s(url: str, work: Callable[[], None]) -> list[float]:
    """Return how long each question for the server's health took while some work was done."""
    taken = []
    with httpx.Client(base_url=url) as client, ThreadPoolExecutor(1) as pool:
        client.get("/api/v1/healthz")
        doing = pool.submit(work)
        while not doing.done():
            begun = time.perf_counter()
            client.get("/api/v1/healthz").raise_for_status()
            taken.append(time.perf_counter() - begun)
            time.sleep(0.005)
        doing.result()
    return taken
