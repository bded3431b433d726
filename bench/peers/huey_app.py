"""The two tasks of `bench/dispatch.py` on Huey; `BENCH_REDIS_PORT` names the broker."""

import os
import time

import redis
from huey import RedisHuey

PORT = int(os.environ["BENCH_REDIS_PORT"])
huey = RedisHuey("bench", host="127.0.0.1", port=PORT, db=5, results=False, blocking=True)
counter = redis.Redis(port=PORT, db=9)


@huey.task()
def noop(_number: int) -> None:
    """Count itself."""
    counter.incr("done")


@huey.task()
def stamp(_number: int) -> None:
    """Say when its first line ran."""
    counter.rpush("stamps", time.time())


enqueue_noop, enqueue_stamp = noop, stamp
