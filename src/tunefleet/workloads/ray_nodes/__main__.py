"""`python -m tunefleet.workloads.ray_nodes gcs://PACKAGE`: the entry point of a job on a Ray cluster."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

from tunefleet.integrations.clusters.base import NodeRequest
from tunefleet.integrations.clusters.ray_order import (
    AGAIN,
    ENDED,
    FAILED,
    HOPELESS,
    LASTING,
    RUNNING,
    WAITING,
    OrderError,
    unpack,
)


def main() -> int:
    """Run the order, and report its result; the last line is for the server."""
    # Keep each node's lines, even if other nodes print the same ones.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    # Imported here, after the environment variable that it reads.
    import ray

    ray.init(logging_level=logging.ERROR)
    stop = threading.Event()
    # Replaces Ray's own handler, which would exit immediately.
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        code, message = _do(_order(sys.argv[1]), stop)
    except OrderError as error:
        code, message = FAILED, f"{error}."
    # Shut down first, so that the nodes' output comes before the last line.
    ray.shutdown()
    if code:
        print(f"{ENDED}{message}", flush=True)
    return code


def _order(package: str) -> NodeRequest:
    """Take and delete the server's order, which holds secrets."""
    from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get

    text = _internal_kv_get(package)
    if text is None:
        raise OrderError("the order of this job has expired: the server keeps it for ten minutes")
    _internal_kv_del(package)
    return unpack(text)


def _do(ask: NodeRequest, stop: threading.Event) -> tuple[int, str]:
    from tunefleet.workloads.ray_nodes import lasting_workers, placement_group, single_task

    if ask.options.get(LASTING) == "true":
        lasting_workers.keep(ask, _say, stop.is_set)
        return 0, ""
    try:
        place = placement_group.take(ask, lambda why: print(f"{WAITING}{why}", flush=True), stop.is_set)
    except placement_group.HopelessError as error:
        return HOPELESS, str(error)
    except placement_group.StoppedError:
        return AGAIN, "Stopped while waiting for nodes."
    try:
        print(f"{RUNNING}{', '.join(place.names())}", flush=True)
        ended = single_task.run(ask, place, stop.is_set)
    finally:
        place.leave()
    return ended.code, " ".join(ended.faults)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
