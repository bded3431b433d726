"""The two tasks of `bench/dispatch.py` on Celery; `BENCH_REDIS_PORT` names the broker."""

import os
import time

import redis
from celery import Celery

PORT = int(os.environ["BENCH_REDIS_PORT"])
app = Celery("bench", broker=f"redis://127.0.0.1:{PORT}/1")
app.conf.update(worker_prefetch_multiplier=16, task_ignore_result=True, broker_connection_retry_on_startup=True)
counter = redis.Redis(port=PORT, db=9)


@app.task
def noop(_number: int) -> None:
    """Count itself."""
    counter.incr("done")


@app.task
def stamp(_number: int) -> None:
    """Say when its first line ran."""
    counter.rpush("stamps", time.time())


enqueue_noop, enqueue_stamp = noop.delay, stamp.delay
