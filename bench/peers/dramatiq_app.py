"""The two tasks of `bench/dispatch.py` on Dramatiq; `BENCH_REDIS_PORT` names the broker."""

import os
import time

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

PORT = int(os.environ["BENCH_REDIS_PORT"])
dramatiq.set_broker(RedisBroker(url=f"redis://127.0.0.1:{PORT}/3"))
counter = redis.Redis(port=PORT, db=9)


@dramatiq.actor
def noop(_number: int) -> None:
    """Count itself."""
    counter.incr("done")


@dramatiq.actor
def stamp(_number: int) -> None:
    """Say when its first line ran."""
    counter.rpush("stamps", time.time())


enqueue_noop, enqueue_stamp = noop.send, stamp.send
