"""A trainer that only logs: `python -m bench.peers.metrics_app WHO FOLDER CALLS`; prints JSON of what a call took.

WHO is tunefleet, trackio, mlflow or mlflow-async. With `BENCH_COUNT` it logs a call each millisecond until it is killed
and keeps how many calls have returned in the first eight bytes of that file.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

Log = Callable[[int, dict[str, float]], object]
VALUES = {"loss": 1.0, "learning_rate": 1e-4, "grad_norm": 0.1, "gpu": 50.0}


def opened(who: str, folder: Path) -> tuple[Log, Callable[[], object]]:
    """Return how a call is logged, and what makes all of them durable."""
    if who == "tunefleet":
        from tunefleet.trainer_control import JournalWriter

        journal = JournalWriter(folder, "bench")
        return journal.metric, journal.sync
    if who == "trackio":
        os.environ |= {"TRACKIO_DIR": str(folder)}
        import trackio

        trackio.init(project="bench", name="run", embed=False, auto_log_gpu=False)
        return lambda step, values: trackio.log(values, step=step), trackio.finish
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment("bench")
    mlflow.start_run()
    synchronous = who == "mlflow"

    def log(step: int, values: dict[str, float]) -> None:
        mlflow.log_metrics(values, step=step, synchronous=synchronous)

    def finish() -> None:
        if not synchronous:
            mlflow.flush_async_logging()
        mlflow.end_run()

    return log, finish


def main() -> None:
    """Log, as fast as it goes or until it is killed."""
    who, folder, calls = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    log, finish = opened(who, folder)
    log(0, VALUES)
    counted = os.environ.get("BENCH_COUNT")
    if counted:
        with Path(counted).open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
            for step in range(1, sys.maxsize):
                log(step, VALUES)
                shared[:8] = struct.pack("<q", step + 1)
                time.sleep(0.001)
    began = time.perf_counter()
    for step in range(1, calls + 1):
        log(step, VALUES)
    logged = time.perf_counter()
    finish()
    durable = time.perf_counter()
    print(json.dumps({"call_us": (logged - began) / calls * 1e6, "durable_per_s": calls / (durable - began)}))


if __name__ == "__main__":
    main()
