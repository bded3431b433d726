"""A fleet in a Redis with TLS and the shipped users: all of the link works, and nothing else is let through."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

from tests.contract.transport.conftest import registration
from tests.integration.redis.secured import SERVER_PASSWORD, WORKER_PASSWORD, SecuredRedis, users
from tests.integration.redis.site import Hand, Site, until
from tunefleet.errors import MachineError, UnreachableError
from tunefleet.schemas.worker_link import Finish
from tunefleet.settings import WorkerSettings, load
from tunefleet.transport.redis.address import address_of
from tunefleet.transport.redis.errors import ACL_FILE
from tunefleet.transport.redis.keys import INLINE_BYTES, Keys
from tunefleet.transport.redis.worker import RedisLink

pytestmark = [pytest.mark.proof, pytest.mark.timeout(240)]
Start = Callable[..., Site]
Secured = Callable[..., SecuredRedis]


@pytest.fixture(scope="module")
def redis(secured_redis: Secured) -> SecuredRedis:
    return secured_redis()


def without_files(url: str) -> str:
    return url.partition("?")[0]


def test_a_fleet_works_with_no_more_than_the_shipped_rights(site: Start, redis: SecuredRedis) -> None:
    ca = redis.authority.file
    here = site(redis, url=without_files(redis.server_url), redis_ca_file=ca)
    worker = here.worker(
        "w", REDIS_URL=without_files(redis.url), TUNEFLEET_REDIS_CA_FILE=str(ca), HEARTBEAT_INTERVAL_SEC="0.5"
    )
    until(lambda: here.online("w"), "the registration")
    task_id = here.submit()
    until(lambda: here.completed(task_id), "the task's end")
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=60)
    assert worker.returncode == 0, said
    assert "has no permission" not in said

    # One worker that has a user of its own; also what is too large for Redis.
    url = redis.of("worker-w-own", WORKER_PASSWORD)
    hand = Hand(RedisLink(url, Keys(), server_url=here.url), "w-own")
    token = hand.offer(here.submit()).token
    hand.say(accepts=(token,), holding=(token,))
    ended = hand.finish(token, text="x" * (2 * INLINE_BYTES))
    assert ended.finished
    hand.link.close()
    with redis.client as client:
        until(lambda: client.smembers("workers:ids") == set(), "the leave")
        entries = client.execute_command("ACL", "LOG")
        refused = [entry for entry in entries if b"client|setinfo" not in map(_bytes, entry)]
        assert refused == [], "nothing that the link does is refused"


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


FORBIDDEN = (
    ("FLUSHDB",), ("FLUSHALL",), ("KEYS", "*"), ("SCAN", "0"), ("CONFIG", "GET", "*"), ("ACL", "LIST"),
    ("CLIENT", "LIST"), ("CLIENT", "PAUSE", "1"), ("MONITOR",), ("SHUTDOWN",), ("EVAL", "return 1", "0"),
    ("SUBSCRIBE", "x"), ("INFO",), ("DEL", "other"), ("XADD", "other", "*", "a", "b"), ("HSET", "other", "a", "b"),
)  # fmt: skip
OF_OTHERS = (
    ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "tasks:other", ">"), ("DEL", "tasks:other"),
    ("XADD", "worker:other:commands", "*", "a", "b"), ("HSET", "worker:other", "a", "b"), ("DEL", "worker:other:hb"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("user", "password", "more"),
    [
        ("server", SERVER_PASSWORD, (("GET", "other"), ("SET", "other", "1"), ("SETEX", "worker:w:hb", "1", "1"))),
        ("worker", WORKER_PASSWORD, (("XREADGROUP", "GROUP", "g", "c", "STREAMS", "tasks.events", ">"),)),
        ("worker-w-own", WORKER_PASSWORD, (("XINFO", "GROUPS", "workers.events"), *OF_OTHERS)),
    ],
    ids=["server", "worker", "one worker"],
)
def test_what_nobody_needs_is_refused(
    redis: SecuredRedis, user: str, password: str, more: tuple[tuple[str, ...], ...]
) -> None:
    with Redis.from_url(redis.of(user, password), protocol=2) as client:
        assert client.ping()
        for command in (*FORBIDDEN, *more):
            with pytest.raises(NoPermissionError):
                client.execute_command(*command)


def test_a_wrong_password_is_said_with_the_file_of_the_users(redis: SecuredRedis) -> None:
    said = _fails(redis.of("worker", "not-the-password"))
    assert "rejects the login of the user 'worker'" in said
    assert ACL_FILE in said
    assert "not-the-password" not in said


def test_a_right_that_is_lost_is_said_with_the_file_of_the_users_and_waited_for(
    site: Start, redis: SecuredRedis, caplog: pytest.LogCaptureFixture
) -> None:
    here = site(redis, url=redis.server_url)
    hand = Hand(RedisLink(redis.url, Keys(), server_url=here.url))
    token = hand.offer(here.submit()).token
    with redis.client as client:
        client.execute_command("ACL", "SETUSER", "server", "-xreadgroup")
        until(lambda: "the user 'server' has no permission for XREADGROUP" in caplog.text, "the server's notice")
        assert ACL_FILE in caplog.text
        client.execute_command("ACL", "SETUSER", "server", "+xreadgroup")
    # The reader of this worker has gone on: what it says now arrives, late as it may be.
    until(lambda: _taken(hand, token), "the end of the task")
    hand.link.close()


def _taken(hand: Hand, token: str) -> bool:
    try:
        finish = Finish(token=token, outcome="completed", reason="finished", result={})
        return bool(hand.say(finishes=(finish,)).finished)
    except UnreachableError:
        return False


def test_a_redis_that_is_not_trusted_is_named_with_the_way_out(redis: SecuredRedis) -> None:
    said = _fails(without_files(redis.url))
    assert "has an untrusted certificate" in said
    assert "TUNEFLEET_REDIS_CA_FILE" in said


def test_a_redis_that_asks_for_a_certificate_gets_one(secured_redis: Secured) -> None:
    strict = secured_redis("--tls-auth-clients", "yes")
    url, ca = without_files(strict.url), str(strict.authority.file)
    said = _fails(url, redis_ca_file=ca)
    assert "TUNEFLEET_REDIS_CERT_FILE" in said
    client = strict.authority.sign("client", "127.0.0.1")
    files = {"ssl_ca_certs": ca, "ssl_certfile": str(client.cert), "ssl_keyfile": str(client.key)}
    with Redis.from_url(strict.of("worker", WORKER_PASSWORD, **files), protocol=2) as opened:
        assert opened.ping()


def _fails(url: str, **files: str) -> str:
    """What a worker says that cannot start; a process of its own would say it on standard error, and end."""
    settings = load(WorkerSettings, redis_url=url, **files)
    link = RedisLink(str(address_of(settings)), Keys(), server_url="http://127.0.0.1:9")
    with pytest.raises((MachineError, UnreachableError)) as told:
        link.register(registration("w"))
    link.close()
    return f"{told.value} ({told.value.detail})"


def test_the_script_refuses_what_would_be_no_protection() -> None:
    short = {"REDIS_WORKER_PASSWORD": "short"}
    with pytest.raises(AssertionError, match="must have 16 characters"):
        users(**short)
    with pytest.raises(AssertionError, match="letters, digits"):
        users(TUNEFLEET_REDIS_PREFIX="*")
    told = users("lab-3", TASK_TOPIC="nightly", TUNEFLEET_REDIS_PREFIX="lab:")
    patterns = {part for part in told.split() if "~" in part}
    assert patterns == {
        "%W~lab:nightly.events", "%W~lab:workers.events", "%W~lab:workers:ids", "~lab:nightly:lab-3",
        "~lab:worker:lab-3", "~lab:worker:lab-3:*",
    }  # fmt: skip
    assert len(told.splitlines()) == 1
    assert "%W" not in users(REDIS_BEFORE_7="1")
