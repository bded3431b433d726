"""The two tasks of `bench/dispatch.py` on Taskiq's list broker; `BENCH_REDIS_PORT` names the broker."""

import asyncio
import os
import time

import redis
from taskiq_redis import ListQueueBroker

PORT = int(os.environ["BENCH_REDIS_PORT"])
broker = ListQueueBroker(url=f"redis://127.0.0.1:{PORT}/4")
counter = redis.Redis(port=PORT, db=9)
_loop = asyncio.new_event_loop()


@broker.task
async def noop(_number: int) -> None:
    """Count itself."""
    counter.incr("done")


@broker.task
async def stamp(_number: int) -> None:
    """Say when its first line ran."""
    counter.rpush("stamps", time.time())


def enqueue_noop(number: int) -> None:
    """Send a task that counts itself."""
    _loop.run_until_complete(noop.kiq(number))


def enqueue_stamp(number: int) -> None:
    """Send a task that says when it began."""
    _loop.run_until_complete(stamp.kiq(number))
