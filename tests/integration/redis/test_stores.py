"""Servers that meet in one Redis: a fleet has one store, and a server of another one stays out of it."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.integration.redis.process import RedisProcess
from tests.integration.redis.site import Site, until
from tunefleet.transport.redis.fleet_identity import OtherStoreError, Store, StoreClaim, refuse_other_store
from tunefleet.transport.redis.keys import Keys

pytestmark = [pytest.mark.proof, pytest.mark.timeout(240)]
Start = Callable[..., Site]
Redises = Callable[..., RedisProcess]
OURS, OTHERS = Store("ours", "on here"), Store("others", "on there")


def _server(redis: RedisProcess, data: Path, **more: str) -> subprocess.Popen[str]:
    given = {"REDIS_URL": redis.url, "TUNEFLEET_PORT": "0", **more}
    return subprocess.Popen(
        [sys.executable, "-m", "tunefleet.api", "--data", str(data)],
        env={**os.environ, **given}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_server_of_another_store_does_not_start_where_one_serves_the_topic(
    site: Start, redis_server: Redises, tmp_path: Path
) -> None:
    redis = redis_server()
    here = site(redis)
    with redis.client as client:
        until(lambda: client.exists("tunefleet:store:tasks"), "the first server's word")
    refused = _server(redis, tmp_path / "second")
    _, said = refused.communicate(timeout=90)
    assert refused.returncode == 1
    for words in (str(here.folder / "data"), "another database", "TASK_TOPIC", "TUNEFLEET_REDIS_PREFIX"):
        assert words in said
    assert "Traceback" not in said
    for apart in ({"TASK_TOPIC": "jobs"}, {"TUNEFLEET_REDIS_PREFIX": "lab:"}):
        second = _server(redis, tmp_path / "second", **apart)
        with redis.client as client:
            key = f"{apart.get('TUNEFLEET_REDIS_PREFIX', '')}tunefleet:store:{apart.get('TASK_TOPIC', 'tasks')}"
            until(lambda client=client, key=key: client.exists(key), "the second server's word")
        second.terminate()
        second.communicate(timeout=60)
        assert second.returncode == 0


def test_a_server_that_finds_another_store_later_stays_out_says_so_and_joins_when_it_is_gone(
    site: Start, redis_server: Redises, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    redis = redis_server()
    first = site(redis)
    first.worker("w")
    until(lambda: first.online("w"), "the registration")
    second = site(redis)
    until(lambda: "another database: workers would switch" in caplog.text, "the second server's notice")
    ids = [first.submit() for _ in range(5)]
    theirs = second.submit()
    with redis.client as client:
        client.flushdb()
        until(lambda: all(first.completed(task_id) for task_id in ids), "the tasks' end")
    assert second.client.workers.list().items == ()
    assert second.status(theirs) == "queued"
    told = [record for record in caplog.records if "another database" in record.getMessage()]
    assert [record.levelname for record in told if record.levelno > logging.DEBUG] == ["ERROR"], "said once"
    first.stop()
    second.worker("of-the-second")
    until(lambda: second.completed(theirs), "the task's end")
    first.start()  # to be stopped with the others


def test_fleets_with_topics_of_their_own_leave_each_others_workers_at_rest(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis)
    hand = here.hand()
    with redis.client as client:
        client.sadd("workers:elastic_disabled", "of-another-fleet", hand.worker_id)
        until(lambda: not client.sismember("workers:elastic_disabled", hand.worker_id), "the server's look")
        assert client.smembers("workers:elastic_disabled") == {"of-another-fleet"}
    hand.link.close()


def _with(redis: RedisProcess, *steps: Callable[[Any], Any]) -> list[Any]:
    async def run() -> list[Any]:
        client: Any = Redis.from_url(redis.url, decode_responses=True, protocol=2)
        try:
            return [await step(client) for step in steps]
        finally:
            await client.aclose()

    return asyncio.run(run())


def test_the_word_of_a_store_is_its_own_to_renew_and_expires_when_nobody_does(redis_server: Redises) -> None:
    redis = redis_server()

    def claim(client: Any, store: Store) -> StoreClaim:
        return StoreClaim(client, Keys(), store, redis.url)

    async def refused(client: Any) -> None:
        with pytest.raises(OtherStoreError, match="on here"):
            await claim(client, OTHERS).hold()

    _with(redis, lambda c: claim(c, OURS).hold(), lambda c: claim(c, OURS).hold(), refused)
    asyncio.run(refuse_other_store(redis.url, Keys(), OURS))
    with redis.client as client:
        client.expire("tunefleet:store:tasks", 2)
    # As if the server had been killed: nobody renews its word.
    asyncio.run(refuse_other_store(redis.url, Keys(), OTHERS))
    _with(redis, lambda c: claim(c, OTHERS).hold(), lambda c: claim(c, OURS).drop())
    with redis.client as client:
        assert client.exists("tunefleet:store:tasks"), "nobody takes back another's word"


def test_between_look_and_change_another_store_cannot_be_overwritten(
    redis_server: Redises, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis, key, real = redis_server(), "tunefleet:store:tasks", Redis.get
    theirs = '{"store": "others", "where": "on there"}'
    after_look: list[Callable[[Any], object]] = []

    async def get(self: Any, name: str) -> Any:
        found = await real(self, name)
        if after_look:
            with redis.client as client:
                after_look.pop()(client)
        return found

    monkeypatch.setattr(Redis, "get", get)

    def hold(client: Any) -> Any:
        return StoreClaim(client, Keys(), OURS, redis.url).hold()

    with redis.client as client:
        for before in ("", "ours"):  # as if our word had expired at that moment, or nobody had said one
            client.delete(key)
            if before:
                _with(redis, hold)
            after_look.append(lambda c: c.set(key, theirs))
            with pytest.raises(OtherStoreError, match="on there"):
                _with(redis, hold)
            assert client.get(key) == theirs
        client.delete(key)
        _with(redis, hold)
        after_look.append(lambda c: c.set(key, theirs))
        _with(redis, lambda c: StoreClaim(c, Keys(), OURS, redis.url).drop())
        assert client.get(key) == theirs, "nobody takes back another's word"


def test_a_redis_that_is_away_keeps_no_server_from_starting(redis_server: Redises) -> None:
    redis = redis_server()
    redis.kill()
    asyncio.run(refuse_other_store(redis.url, Keys(), OURS))
