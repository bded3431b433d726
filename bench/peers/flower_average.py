"""Flower's average of some adapters, file to file: `python flower_average.py OUT PATH:EXAMPLES …`; prints JSON.

Runs in Flower's own environment and imports nothing of ours.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from flwr.common import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from safetensors.numpy import load_file, save_file


def average(paths: list[tuple[str, int]], out: str) -> dict[str, float]:
    """Read, average and write; returns seconds of all, of all its threads, and of the average alone."""
    began, worked = time.perf_counter(), time.process_time()
    records = []
    for path, examples in paths:
        arrays = ArrayRecord({name: Array(value) for name, value in load_file(path).items()})
        records.append(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": float(examples)})}))
    loaded = time.perf_counter()
    found = aggregate_arrayrecords(records, "num-examples")
    done = time.perf_counter()
    save_file({name: value.numpy() for name, value in found.items()}, out)
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - worked,
        "average_seconds": done - loaded,
    }


def main() -> None:
    """Average once for the libraries, then for the figure."""
    out, *given = sys.argv[1:]
    paths = [(path, int(examples)) for path, _, examples in (each.rpartition(":") for each in given)]
    average(paths[:1], out)
    found = average(paths, out)
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps({**found, "peak_mb": peak}))


if __name__ == "__main__":
    main()
