"""A task that naps on Celery, Dramatiq or Taskiq: `BENCH_PEER` names which, `BENCH_REDIS_PORT` the broker.

`python -m bench.peers.recovery_app` sends a task for each number that it reads. Each is acknowledged after its end, so
that a killed worker's comes again once `BENCH_WINDOW_S` has passed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import redis

PEER, PORT = os.environ["BENCH_PEER"], int(os.environ["BENCH_REDIS_PORT"])
WINDOW_S, NAP_S = float(os.environ["BENCH_WINDOW_S"]), float(os.environ["BENCH_NAP_S"])
URL = f"redis://127.0.0.1:{PORT}/1"
counter = redis.Redis(port=PORT, db=9)


def began(number: int) -> None:
    """Say who runs the task, and since when."""
    counter.rpush("began", json.dumps([number, os.getsid(0), time.time()]))


app: Any = None
broker: Any = None
if PEER == "celery":
    from celery import Celery

    app = Celery("bench", broker=URL)
    app.conf.update(
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": WINDOW_S},
    )

    @app.task
    def nap(number: int) -> None:
        """Begin, sleep, end."""
        began(number)
        time.sleep(NAP_S)
        counter.rpush("ended", number)

elif PEER == "dramatiq":
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    # By default one command in a thousand looks for dead workers: with a quiet queue none does for minutes.
    broker = RedisBroker(url=URL, heartbeat_timeout=int(WINDOW_S * 1000), maintenance_chance=1_000_000)
    dramatiq.set_broker(broker)

    @dramatiq.actor
    def nap(number: int) -> None:
        """Begin, sleep, end."""
        began(number)
        time.sleep(NAP_S)
        counter.rpush("ended", number)

else:
    from taskiq_redis import RedisStreamBroker

    broker = RedisStreamBroker(url=URL, idle_timeout=int(WINDOW_S * 1000), xread_count=1)

    @broker.task
    async def nap(number: int) -> None:
        """Begin, sleep, end; a poke (-1) does nothing."""
        if number < 0:
            return
        began(number)
        await asyncio.sleep(NAP_S)
        counter.rpush("ended", number)


async def send_with_taskiq(task: Any) -> None:
    """Make the group of readers, and send what is asked for."""
    await task.broker.startup()
    for line in sys.stdin:
        await task.kiq(int(line))


if __name__ == "__main__":
    # Run as a program, this module is `__main__`; the tasks are named by the module that the workers import.
    from bench.peers import recovery_app

    if PEER == "taskiq":
        asyncio.run(send_with_taskiq(recovery_app.nap))
    send = {"celery": "delay", "dramatiq": "send"}.get(PEER, "kiq")
    for each in sys.stdin:
        getattr(recovery_app.nap, send)(int(each))
