"""What can happen to the Redis in which server and workers meet: killed, emptied, slow, full, and short of a right."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.transport.conftest import registration
from tests.integration.redis.process import RedisProcess
from tests.integration.redis.secured import users
from tests.integration.redis.site import Hand, Proxy, Site, until
from tests.integration.redis.test_faults import in_thread
from tunefleet.errors import ForbiddenError, MachineError, UnreachableError
from tunefleet.schemas.worker_link import ExchangeReply
from tunefleet.transport.http import HttpLink
from tunefleet.transport.redis.keys import INLINE_BYTES, Keys
from tunefleet.transport.redis.worker import RedisLink

pytestmark = [pytest.mark.proof, pytest.mark.timeout(240)]
Start = Callable[..., Site]
Redises = Callable[..., RedisProcess]


def _done_once(here: Site, ids: list[str]) -> None:
    """Wait for tasks, and see that each was run to its end once."""
    until(lambda: all(here.completed(task_id) for task_id in ids), "the tasks' end")
    for task_id in ids:
        assert [a.state for a in here.client.tasks.get(task_id).attempt_list].count("finished") == 1


@pytest.mark.parametrize("durable", [True, False], ids=["with its data", "empty"])
def test_a_redis_that_is_killed_and_started_again_loses_nothing(
    site: Start, redis_server: Redises, durable: bool
) -> None:
    redis = redis_server(*(["--appendonly", "yes", "--appendfsync", "always"] if durable else []))
    here = site(redis)
    for name in ("left", "right"):
        here.worker(name)
    until(lambda: here.online("left") and here.online("right"), "the registrations")
    ids: list[str] = []
    for _ in range(2):
        ids += [here.submit() for _ in range(5)]
        redis.kill()
        ids += [here.submit() for _ in range(5)]
        redis.start()
        ids += [here.submit() for _ in range(5)]
    _done_once(here, ids)
    with redis.client as client:
        until(lambda: client.smembers("workers:ids") == {"left", "right"}, "the presence")
        assert client.exists("tunefleet:epoch", "worker:left", "worker:left:hb", "worker:right") == 4


def test_a_redis_that_is_flushed_again_and_again_loses_nothing(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis)
    for name in ("left", "right"):
        here.worker(name)
    until(lambda: here.online("left") and here.online("right"), "the registrations")
    ids: list[str] = []
    with redis.client as client:
        for _ in range(4):
            ids += [here.submit() for _ in range(5)]
            client.flushdb()
            ids += [here.submit() for _ in range(5)]
        _done_once(here, ids)
        until(lambda: client.smembers("workers:ids") == {"left", "right"}, "the presence")


def test_what_a_worker_that_is_gone_would_have_read_goes_with_it(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis, lost_after_s=2, accept_within_s=60)
    gone, stays = here.hand(), here.hand()
    name = gone.worker_id
    inbox, hash_, heartbeat = f"tasks:{name}", f"worker:{name}", f"worker:{name}:hb"
    with redis.client as client:
        client.sadd("workers:ids", stays.worker_id)
        client.set(f"worker:{stays.worker_id}:hb", "now")
        gone.link.close()
        client.set(heartbeat, "now")  # as if it had been killed
        for stream in (inbox, f"worker:{name}:commands"):
            client.xadd(stream, {"type": "TASK", "token": "secret"})
        until(lambda: not here.online(name), "the loss")
        client.sadd("workers:ids", name)
        assert client.exists(inbox)
        client.delete(heartbeat)  # as if it had expired
        until(lambda: name not in client.smembers("workers:ids"), "the clearing")
        until(lambda: not client.exists(inbox, f"worker:{name}:commands"), "the clearing")
        assert client.exists(hash_)
        here.client.workers.remove(name)
        until(lambda: not client.exists(hash_), "the removal")
        assert stays.worker_id in client.smembers("workers:ids")
    stays.link.close()


def test_all_that_a_server_had_read_when_it_died_is_answered_by_the_next(
    site: Start, redis_server: Redises, caplog: pytest.LogCaptureFixture
) -> None:
    redis = redis_server()
    here = site(redis)
    with redis.client as client:
        # Asked before the server has made the stream, Redis answers with an error.
        until(lambda: client.exists("tasks.events"), "the server's stream")
        (consumer,) = until(lambda: client.xinfo_consumers("tasks.events", "tunefleet:tasks"), "the server's reading")
        here.stop()
        # More than one reading of a stream brings, and more than the server has connections.
        for number in range(600):
            entry = {"type": "LINK_EXCHANGE", "worker_id": "w", "id": str(number), "patience_s": "0", "body": "{"}
            client.xadd("tasks.events", entry)
        client.xreadgroup("tunefleet:tasks", consumer["name"], {"tasks.events": ">"}, count=1000)
        assert client.xpending("tasks.events", "tunefleet:tasks")["pending"] == 600
        here.start()
        until(lambda: client.xpending("tasks.events", "tunefleet:tasks")["pending"] == 0, "the answers")
        answers = client.xrange(Keys().inbox("w"))
    assert sorted(int(fields["re"]) for _, fields in answers) == list(range(600)), "each one, once"
    # A link that fails begins anew and reads again: that would hide what was left unread.
    said = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    assert [line for line in said if "Invalid message" not in line] == []


def test_a_slow_redis_only_takes_longer(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    proxy = Proxy(redis.port, delay_s=0.15)
    try:
        here = site(redis, url=f"redis://127.0.0.1:{proxy.port}/0")
        here.worker("far")
        _done_once(here, [here.submit() for _ in range(5)])
    finally:
        proxy.close()


def test_a_full_redis_is_named_and_work_goes_on_when_there_is_room(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis)
    here.worker("w", HEARTBEAT_INTERVAL_SEC="0.5")
    until(lambda: here.online("w"), "the registration")
    log = here.folder / "results-w" / "worker.log"
    with redis.client as client:
        client.config_set("maxmemory", "1")
        ids = [here.submit() for _ in range(3)]
        until(lambda: "is full (maxmemory)" in log.read_text(), "the worker's notice")
        assert not any(here.completed(task_id) for task_id in ids)
        client.config_set("maxmemory", "0")
    _done_once(here, ids)


def _user(redis: RedisProcess, name: str, *rules: str) -> str:
    with redis.client as client:
        client.execute_command("ACL", "SETUSER", name, "reset", "on", ">pw", *rules)
    return f"redis://{name}:pw@127.0.0.1:{redis.port}/0"


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        pytest.param(("~*", "+@all", "-xadd"), "XADD workers.events", id="no command"),
        pytest.param(("~tasks*", "~worker:*", "+@all"), "XADD workers.events", id="no key"),
        pytest.param(("~*", "+@all", "-xreadgroup"), "XREADGROUP tasks:w", id="no reading"),
        pytest.param(None, "rejects the login of the user 'limited'", id="no password"),
    ],
)
def test_a_worker_that_lacks_a_right_ends_and_names_it(
    site: Start, redis_server: Redises, rules: tuple[str, ...] | None, words: str
) -> None:
    redis = redis_server()
    here = site(redis)
    url = _user(redis, "limited", *(rules or ()))
    worker = here.worker("w", REDIS_URL=url if rules else url.replace("pw", "wrong"))
    _, said = worker.communicate(timeout=90)
    assert worker.returncode == 1
    assert words in said
    assert "'limited'" in said
    assert "Traceback" not in said
    assert "pw" not in said


def test_the_shipped_rights_are_enough_where_redis_is_older_than_7(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    told = [line.split()[1:] for line in users(REDIS_BEFORE_7="1").splitlines()]
    urls = {name: _user(redis, name, *rules[2:]) for name, *rules in told if name != "default"}
    here = site(redis, url=urls["server"])
    worker = here.worker("w", REDIS_URL=urls["worker"], HEARTBEAT_INTERVAL_SEC="0.5")
    _done_once(here, [here.submit() for _ in range(3)])
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=60)
    assert "has no permission" not in said
    with redis.client as client:
        assert client.smembers("workers:ids") == set()
        # Only the greeting of the client, which needs no answer.
        assert [entry for entry in client.execute_command("ACL", "LOG") if "client" not in entry] == []


def test_a_server_that_lacks_a_right_serves_http_says_so_and_goes_on_when_it_has_it(
    site: Start, redis_server: Redises, caplog: pytest.LogCaptureFixture
) -> None:
    redis = redis_server()
    here = site(redis, url=_user(redis, "server", "~*", "+@all", "-xreadgroup"))
    until(lambda: "the user 'server' has no permission for XREADGROUP" in caplog.text, "the server's notice")
    task_id = here.submit()
    here.worker("w", REDIS_URL=redis.url)
    with redis.client as client:
        until(lambda: client.xlen("workers.events"), "the worker's registration")
        assert here.client.workers.list().items == ()
        client.execute_command("ACL", "SETUSER", "server", "+xreadgroup")
    _done_once(here, [task_id])


def test_a_server_without_redis_serves_http_and_joins_when_it_is_there(
    site: Start, redis_server: Redises, caplog: pytest.LogCaptureFixture
) -> None:
    redis = redis_server()
    redis.kill()
    caplog.set_level(logging.INFO)
    here = site(redis)
    until(lambda: "does not respond. Workers on Redis wait; HTTP continues to work." in caplog.text, "the notice")
    key = (here.folder / "data" / "keys" / "worker.key").read_text().strip()
    hand = Hand(HttpLink(here.url, key))  # type: ignore[arg-type]
    hand.finish(hand.offer(here.submit()).token)
    hand.say(want=0)
    redis.start()
    until(lambda: "The Redis transport is ready" in caplog.text, "the link")
    here.worker("w")
    _done_once(here, [here.submit()])
    hand.link.close()


def test_an_id_belongs_to_its_link(site: Start, redis_server: Redises) -> None:
    here = site(redis_server())
    key = (here.folder / "data" / "keys" / "worker.key").read_text().strip()
    over_http, over_redis = HttpLink(here.url, key), RedisLink(here.redis_url, Keys(), server_url=here.url)
    over_http.register(registration("keyed"))
    with pytest.raises(ForbiddenError, match="keyed belongs to a worker with a key"):
        over_redis.register(registration("keyed"))
    over_redis.register(registration("keyless"))
    with pytest.raises(ForbiddenError, match="keyless belongs to a worker on the Redis link"):
        over_http.register(registration("keyless"))
    for link in (over_http, over_redis):
        link.close()


def test_what_is_large_goes_over_http_by_digest(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis, accept_within_s=60)
    hand = here.hand()
    longest: list[int] = []
    with redis.client as client, redis.client as watching, watching.monitor() as monitor:
        watcher = threading.Thread(target=_watch, args=(monitor, longest))
        watcher.start()
        items = ["x" * 1000] * 200
        document = f"""apiVersion: tunefleet/v1
metadata: {{name: large}}
spec: {{taskType: echo, data: {{type: list, items: {items}}}}}
"""
        task_id = here.submit(document)
        offer = hand.offer(task_id)
        assert offer.spec["data"]["items"] == items
        assert hand.finish(offer.token, items=items).finished == (offer.token,)
        client.echo("the end")
        watcher.join(60)
    result = here.client.tasks.get(task_id).result
    assert result is not None
    assert result["result"] == {"items": items}
    assert 0 < max(longest) < INLINE_BYTES
    hand.link.close()


def _watch(monitor: Any, longest: list[int]) -> None:
    for told in monitor.listen():
        longest.append(len(told["command"]))
        if told["command"].endswith("the end"):
            return


def test_a_large_message_without_a_way_to_the_server_names_the_variable(site: Start, redis_server: Redises) -> None:
    here = site(redis_server(), accept_within_s=60)
    hand = Hand(RedisLink(here.redis_url, Keys(), server_url="http://127.0.0.1:9"))
    token = hand.offer(here.submit()).token
    with pytest.raises(UnreachableError, match="TUNEFLEET_SERVER_URL"):
        hand.finish(token, text="x" * INLINE_BYTES)
    assert hand.finish(token).finished == (token,)
    hand.link.close()


def test_what_a_dead_server_has_read_is_answered_by_the_next(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis)
    hand = here.hand()
    token = hand.offer(here.submit()).token
    here.stop()
    thread, told = in_thread(lambda: hand.finish(token))
    with redis.client as client:
        until(lambda: client.xlen("tasks.events"), "the finish")
        taken = until(lambda: client.xreadgroup("tunefleet:tasks", "dead", {"tasks.events": ">"}), "the reading")
        assert taken
        here.start()
        thread.join(60)
        assert isinstance(told[0], ExchangeReply), told
        assert told[0].finished == (token,)
        until(lambda: not client.xpending("tasks.events", "tunefleet:tasks")["pending"], "the acknowledgement")
    hand.link.close()


def test_what_a_killed_worker_had_read_goes_when_the_next_one_registers(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis)
    name, streams = "killed", (Keys().inbox("killed"), Keys().commands("killed"))
    with redis.client as client:
        for stream in streams:
            client.xadd(stream, {"type": "TASK", "session": "s0"})
            for group, consumer in (("s0", "s0"), ("monitor", "somebody")):
                client.xgroup_create(stream, group, "0")
                assert client.xreadgroup(group, consumer, {stream: ">"})
        hand = Hand(RedisLink(here.redis_url, Keys(), server_url=here.url), name)
        for stream in streams:
            groups = {each["name"]: each["pending"] for each in client.xinfo_groups(stream)}
            assert groups == {"s1": 0, "monitor": 1}
    assert hand.finish(hand.offer(here.submit()).token).finished
    hand.link.close()


def test_a_registration_that_comes_late_fences_nobody(site: Start, redis_server: Redises) -> None:
    redis = redis_server()
    here = site(redis)
    hand = here.hand()
    with redis.client as client:
        # A server has read the registration of an earlier process, and died before it answered.
        body = registration(hand.worker_id, session="s0").model_dump_json()
        entry = {"type": "LINK_REGISTER", "topic": "tasks", "worker_id": hand.worker_id, "session": "s0", "id": "old"}
        client.hset(f"worker:{hand.worker_id}", "registration", f"{int((time.time() + 3600) * 1000)}-0")
        client.xadd("workers.events", {**entry, "patience_s": "600", "body": body})
        until(lambda: not [1 for _, e in client.xrange("workers.events") if e["type"] == "LINK_REGISTER"], "its end")
    assert hand.finish(hand.offer(here.submit()).token).finished
    hand.link.close()


def test_an_address_that_is_none_is_said() -> None:
    with pytest.raises(MachineError, match="REDIS_URL"):
        RedisLink("localhost:6379", Keys(), server_url="http://127.0.0.1:9")
