"""Enqueue tasks of `bench/dispatch.py` on a peer: `python -m bench.peers.send MODULE noop|stamp COUNT`.

Runs in the peers' environment. Stamps go one at a time, each after the one before has run, with the time of its call.
"""

from __future__ import annotations

import importlib
import sys
import time

PATIENCE_S = 120.0


def main() -> None:
    """Enqueue them."""
    module, verb, count = sys.argv[1:]
    app = importlib.import_module(f"bench.peers.{module}")
    for number in range(int(count)):
        if verb == "noop":
            app.enqueue_noop(number)
            continue
        app.counter.rpush("calls", time.time())
        app.enqueue_stamp(number)
        deadline = time.monotonic() + PATIENCE_S
        while app.counter.llen("stamps") <= number:
            if time.monotonic() > deadline:
                raise SystemExit(f"{module} did not run a task within {PATIENCE_S:.0f} s.")
            time.sleep(0.001)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
