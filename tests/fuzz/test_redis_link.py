"""Whatever a worker puts into Redis, the server answers the others: nothing of it stops the link."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from tests.contract.transport.conftest import registration
from tests.integration.redis.process import RedisProcess
from tests.integration.redis.site import Hand, Site, until
from tunefleet.schemas.worker_link import Finish
from tunefleet.transport.redis.keys import EXCHANGE, REGISTRATION, Keys
from tunefleet.transport.redis.worker import RedisLink

KEYS = Keys()
PLAIN = {"worker_id": "bad", "session": "s", "wait_s": 0}
Fields = dict[bytes | str, bytes | str]


@pytest.fixture
def site(tmp_path: Path, redis_server: Callable[..., RedisProcess]) -> Iterator[Site]:
    made = Site(tmp_path / "site", redis_server().url)
    yield made
    made.close()


def _exchange(body: bytes | str, **more: bytes | str) -> Fields:
    return {"type": EXCHANGE, "id": "1", "worker_id": "bad", "session": "s", "patience_s": "60", "body": body, **more}


def _registering(body: bytes | str, **more: bytes | str) -> Fields:
    return {**_exchange(body), "type": REGISTRATION, "topic": KEYS.topic, **more}


BODIES: tuple[bytes | str, ...] = (
    "", "{", "null", "[]", "7", "[" * 100_000, '{"a":' * 50_000, "\x00", b"\xff\xfe\x80", b'{"worker_id": "\xff"}',
    '{"worker_id": "\\ud800", "session": "s"}', "NaN", "x" * 2_000_000, json.dumps(PLAIN | {"wait_s": "NaN"}),
    json.dumps(PLAIN | {"worker_id": "good"}), json.dumps(PLAIN | {"worker_id": 7}), json.dumps(PLAIN | {"wait_s": -1}),
    json.dumps(PLAIN | {"holding": {"a": 1}}), json.dumps(PLAIN | {"holding": ["x"] * 5000}),
    json.dumps(PLAIN | {"want": {"light": 10**30}}), json.dumps(PLAIN | {"want": {"x" * 9999: 1}}), json.dumps(PLAIN),
)  # fmt: skip
ODD: tuple[Fields, ...] = (
    {"type": EXCHANGE}, {"type": REGISTRATION, "topic": KEYS.topic}, {"type": b"\xff"}, {b"\xff\xfe": b"\xfd"},
    {"": ""}, _exchange(json.dumps(PLAIN), patience_s="soon"), _exchange(json.dumps(PLAIN), patience_s="nan"),
    _exchange(json.dumps(PLAIN), patience_s="-inf"), _exchange(json.dumps(PLAIN), id=b"\xff", session=b"\xff"),
    _exchange("", digest="../../../../etc/passwd"), _exchange("", digest="0" * 64), _exchange("", digest=b"\xff"),
    _exchange(json.dumps(PLAIN | {"worker_id": "held"}), worker_id="held"),
    _exchange(json.dumps(PLAIN | {"worker_id": "a:b\n*"}), worker_id="a:b\n*"),
    _exchange(json.dumps(PLAIN | {"worker_id": ""}), worker_id=""), _exchange("{}", worker_id=b"\xff" * 9000),
)  # fmt: skip


@pytest.mark.timeout(600)
def test_what_no_worker_of_ours_says_stands_in_nobodys_way(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    good = Hand(_link(site), "good")
    task_id = site.submit()
    with Redis.from_url(site.redis_url) as redis, caplog.at_level(logging.WARNING):
        # The keys of a worker that registers next are none of what the server expects.
        for key in (KEYS.inbox("held"), KEYS.commands("held"), KEYS.worker("held"), KEYS.heartbeat("held")):
            redis.lpush(key, "not this")
        for fields in ODD:
            redis.xadd(KEYS.events, fields)
            redis.xadd(KEYS.worker_events, fields)
        for body in BODIES:
            redis.xadd(KEYS.events, _exchange(body))
            redis.xadd(KEYS.worker_events, _registering(body))
        redis.xadd(KEYS.worker_events, _registering(registration("held").model_dump_json(), worker_id="held", id="2"))
        offer = good.offer(task_id)
        assert good.say(accepts=(offer.token,), holding=(offer.token,)).accepted == (offer.token,)
        finish = Finish(token=offer.token, outcome="completed", reason="finished", result={"ok": True})
        assert good.say(finishes=(finish,)).finished == (offer.token,)
        until(lambda: site.completed(task_id), "the end of the good worker's task")
        until(lambda: not _left(redis), "the end of what was read")
        assert _rereads(site, redis), "a server that starts again is not stopped by them"
    assert "bad" in caplog.text, "the log names who says it"
    good.link.close()


def _link(site: Site) -> RedisLink:
    return RedisLink(site.redis_url, KEYS, server_url=site.url)


def _left(redis: Redis) -> int:
    """Return how many entries were read and not dealt with."""
    return sum(int(redis.xpending(stream, KEYS.group)["pending"]) for stream in (KEYS.events, KEYS.worker_events))


def _rereads(site: Site, redis: Redis) -> bool:
    redis.delete(KEYS.epoch)
    again = Hand(_link(site), "later")
    try:
        return again.say().offers == ()
    finally:
        again.link.close()
