"""The two tasks of `bench/dispatch.py` on a bare PostgreSQL table: `python -m bench.peers.skip_locked_app`.

`BENCH_POSTGRES_URL` names the database, `BENCH_REDIS_PORT` who counts. A worker takes a row with `FOR UPDATE SKIP
LOCKED`, runs it and deletes it in the same transaction: one synced commit a task, and a killed worker's row is free.
"""

import os
import time

import psycopg
import redis

URL = os.environ["BENCH_POSTGRES_URL"]
counter = redis.Redis(port=int(os.environ["BENCH_REDIS_PORT"]), db=9)
TABLE = "CREATE TABLE IF NOT EXISTS bench_queue (id bigserial PRIMARY KEY, verb text NOT NULL)"
TAKE = """
DELETE FROM bench_queue WHERE id =
(SELECT id FROM bench_queue ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING verb
"""
IDLE_S = 0.001
_sending: list[psycopg.Connection] = []


def _send(verb: str) -> None:
    if not _sending:
        _sending.append(psycopg.connect(URL, autocommit=True))
        _sending[0].execute(TABLE)
    _sending[0].execute("INSERT INTO bench_queue (verb) VALUES (%s)", [verb])


def enqueue_noop(_number: int) -> None:
    """Send a task that counts itself."""
    _send("noop")


def enqueue_stamp(_number: int) -> None:
    """Send a task that says when it began."""
    _send("stamp")


def work() -> None:
    """Take tasks until the process is ended."""
    with psycopg.connect(URL) as connection:
        while True:
            with connection.transaction():
                exists = connection.execute("SELECT to_regclass('bench_queue')").fetchone()
            if exists and exists[0]:
                break
            time.sleep(IDLE_S)
        while True:
            with connection.transaction():
                found = connection.execute(TAKE).fetchone()
                if found and found[0] == "stamp":
                    counter.rpush("stamps", time.time())
                elif found:
                    counter.incr("done")
            if found is None:
                time.sleep(IDLE_S)


if __name__ == "__main__":
    work()
