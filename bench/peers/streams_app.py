"""The two tasks of `bench/dispatch.py` on a bare Redis stream with a group: `python -m bench.peers.streams_app`.

What a queue costs that does nothing else: one entry at a time is read, run and acknowledged.
"""

import os
import time

import redis

PORT = int(os.environ["BENCH_REDIS_PORT"])
STREAM, GROUP = "tasks", "workers"
broker = redis.Redis(port=PORT, db=6)
counter = redis.Redis(port=PORT, db=9)


def enqueue_noop(number: int) -> None:
    """Send a task that counts itself."""
    broker.xadd(STREAM, {"verb": "noop", "number": number})


def enqueue_stamp(number: int) -> None:
    """Send a task that says when it began."""
    broker.xadd(STREAM, {"verb": "stamp", "number": number})


def work() -> None:
    """Take tasks until the process is ended."""
    try:
        broker.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    except redis.ResponseError as error:
        if "BUSYGROUP" not in str(error):  # the other worker came first
            raise
    while True:
        for _, entries in broker.xreadgroup(GROUP, str(os.getpid()), {STREAM: ">"}, count=1, block=1000) or ():
            for entry, fields in entries:
                if fields[b"verb"] == b"stamp":
                    counter.rpush("stamps", time.time())
                else:
                    counter.incr("done")
                broker.xack(STREAM, GROUP, entry)


if __name__ == "__main__":
    work()
