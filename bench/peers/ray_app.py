"""The two measures of `bench/dispatch.py` on Ray: `python ray_app.py latency|rate COUNT WORKERS`; prints JSON.

Runs in Ray's own environment. It has no queue that tasks wait in before workers start: workers are there first, and all
tasks are sent at once. Its head keeps them in memory.
"""

from __future__ import annotations

import json
import logging
import sys
import time

import ray


@ray.remote(num_cpus=1)
def stamp() -> float:
    """Say when the first line runs."""
    return time.time()


def latencies(count: int) -> list[float]:
    """Milliseconds from the call to the first line, one at a time."""
    found = []
    for _ in range(count):
        began = time.time()
        found.append(1e3 * (ray.get(stamp.remote()) - began))
        time.sleep(0.02)
    return found


def rate(count: int) -> float:
    """Tasks a second, from the first one to the last."""
    stamps = ray.get([stamp.remote() for _ in range(count)])
    return (count - 1) / (max(stamps) - min(stamps))


def main() -> None:
    """Measure once its workers are there."""
    verb, count, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ray.init(
        num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
    )  # fmt: skip
    ray.get([stamp.remote() for _ in range(50)])
    found = latencies(count) if verb == "latency" else rate(count)
    print(json.dumps({"found": found}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
