"""No secret of a fleet stands where it has no business; and the scan that says so finds those that do."""

from __future__ import annotations

import base64
import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.integration.redis.process import RedisProcess
from tests.integration.redis.site import Site, until
from tests.security.scan import find

SECRET = "s3cr3t/of:nobody+else"
PLANTED = {"service": SECRET}


@pytest.mark.parametrize("before", [b"", b"a", b"ab", b"abc"])
def test_a_secret_in_a_file_is_found_however_it_is_written(tmp_path: Path, before: bytes) -> None:
    value = SECRET.encode()
    written = {
        "plain.log": before + b"said " + value,
        "far.bin": bytes((4 << 20) - 5) + value,
        "base64.json": json.dumps(base64.b64encode(before + value + b"behind").decode()).encode(),
        "hex.txt": value.hex().encode(),
        "link.txt": b"https://host/?key=s3cr3t%2Fof%3Anobody%2Belse",
        "log.gz": gzip.compress(b"said " + value),
        "near.txt": value[:-1],
    }
    for name, data in written.items():
        (tmp_path / name).write_bytes(data)
    found = find(PLANTED, [tmp_path])
    assert {Path(each.place).name for each in found} == set(written) - {"near.txt"}
    assert {each.secret for each in found} == {"service"}
    assert SECRET not in repr(found)


def test_a_secret_in_a_name_and_in_a_database_is_found(tmp_path: Path) -> None:
    (tmp_path / f"run-{SECRET.replace('/', '-')}").touch()
    with sqlite3.connect(tmp_path / "some.db") as connection:
        connection.execute("CREATE TABLE told (words TEXT)")
        connection.execute("INSERT INTO told VALUES (?)", (json.dumps({"key": SECRET}),))
    connection.close()
    assert [Path(each.place).name for each in find(PLANTED, [tmp_path])] == ["some.db"]
    assert find({"name": SECRET.replace("/", "-")}, [tmp_path])[0].place.startswith(str(tmp_path / "run-"))
    told = {each.place for each in find(PLANTED, [], database_url=f"sqlite:///{tmp_path / 'some.db'}")}
    assert told == {"table told"}


def test_a_secret_in_any_kind_of_key_is_found(redis_server: Callable[..., RedisProcess]) -> None:
    url = redis_server().url
    with redis.Redis.from_url(url) as client:
        client.set("string", SECRET)
        client.hset("hash", "field", SECRET)
        client.rpush("list", "a", SECRET)
        client.sadd("set", SECRET)
        client.zadd("zset", {SECRET: 1.0})
        client.xadd("stream", {"line": json.dumps({"key": SECRET})})
        client.set(f"key-{SECRET}", "")
        client.set("innocent", "s3cr3t")
    assert len(find(PLANTED, [], url)) == 7


def test_what_stands_anywhere_by_chance_is_not_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="short"):
        find({"short": "abc"}, [tmp_path])


WORK = """apiVersion: tunefleet/v1
metadata: {name: hello}
spec: {taskType: echo, data: {type: list, items: ["key ${secret:TOKEN}"]}}
"""


def test_a_fleet_writes_no_secret_down(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    site: Callable[..., Site],
    redis_server: Callable[..., RedisProcess],
) -> None:
    """Keys of people and workers, a login code, what a task uses, and what the worker's environment has."""
    monkeypatch.setenv("HF_TOKEN", "hf_ofThisMachine0123456789")
    store = redis_server()
    fleet = site(store)
    fleet.worker("w1", TUNEFLEET_SECRET_TOKEN=SECRET)
    until(lambda: fleet.online("w1"))
    admin = (fleet.folder / "data" / "keys" / "admin.key").read_text().strip()
    secrets = {
        "what a task uses": SECRET,
        "HF_TOKEN": "hf_ofThisMachine0123456789",
        "the admin's key": admin,
        "the worker's key": (fleet.folder / "data" / "keys" / "worker.key").read_text().strip(),
        "a member's key": fleet.client.keys.create("ada").secret,
        "a login code": fleet.client.login_code().code,
    }
    task = fleet.submit(WORK)
    until(lambda: fleet.completed(task))
    fleet.stop()
    try:
        places = [each for each in fleet.folder.rglob("*") if each.is_file() and each.parent.name != "keys"]
        assert any(place.name.startswith("tunefleet.db") for place in places)
        found = [each for each in find(secrets, [fleet.folder], store.url) if "/keys/" not in each.place]
        assert found == []
        assert {each.secret for each in find(secrets, [fleet.folder])} == {"the admin's key", "the worker's key"}
    finally:
        fleet.start()
