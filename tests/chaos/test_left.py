"""What a world has left is seen: files, processes, entries of Redis, and secrets that lie open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.chaos import history, planted
from tests.chaos.member import dead_children, of_world, until
from tests.chaos.world import World
from tests.integration.postgres.process import PASSWORD, PostgresProcess
from tests.integration.redis.process import RedisProcess

_LEAVES_A_ZOMBIE = "import os, sys; pid = os.fork() or os._exit(0); print(pid, flush=True); sys.stdin.read()"


def test_a_process_that_is_left_and_a_child_that_nobody_waits_for_are_found(tmp_path: Path) -> None:
    mark = str(tmp_path)
    assert (of_world(mark), dead_children(mark)) == ([], [])
    left = subprocess.Popen(
        [sys.executable, "-c", _LEAVES_A_ZOMBIE], env={**os.environ, "TMPDIR": mark},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with left:
        assert left.stdout is not None
        child = int(left.stdout.readline())
        until(lambda: [each.pid for each in of_world(mark)] == [left.pid], "the child lives no more")
        until(lambda: dead_children(mark), "the child is dead")
        assert f"zombie {child} " in dead_children(mark)[0]
        left.communicate("")
    assert of_world(mark) == []


@pytest.mark.parametrize("name", ["x.tmp", "x.part", ".x.partial", ".x.draft", "x.new", "tmp-x", ".tmpx"])
def test_a_temporary_file_is_found_wherever_it_lies(tmp_path: Path, name: str) -> None:
    folders = [tmp_path / "server" / "data" / "deep", tmp_path / "worker-1" / "results" / "deep", tmp_path / "of"]
    made = SimpleNamespace(
        folder=tmp_path, temporary=folders[2], results=lambda: {"worker-1": tmp_path / "worker-1" / "results"}
    )
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "kept.log").touch()
    assert list(history._files(cast(World, made))) == []
    for folder in folders:
        (folder / name).touch()
    assert len(list(history._files(cast(World, made)))) == 3


def test_a_folder_that_was_unpacked_into_is_found(tmp_path: Path) -> None:
    made = SimpleNamespace(folder=tmp_path, temporary=tmp_path / "of", results=dict)
    (tmp_path / "server" / "data" / ".adapter-a1b2c3d4").mkdir(parents=True)
    (found,) = history._files(cast(World, made))
    assert found.startswith("temporary folder ")


def test_an_entry_that_nobody_acknowledges_and_secrets_that_lie_open_are_found(
    tmp_path: Path, redis_server: Callable[..., RedisProcess], postgres: PostgresProcess
) -> None:
    keys = tmp_path / "server" / "data" / "keys"
    for folder in (keys, tmp_path / "logs", tmp_path / "results"):
        folder.mkdir(parents=True)
    (keys / "admin.key").write_text("tf_this_is_the_admin_key\n")
    made: Any = SimpleNamespace(
        folder=tmp_path, logs=tmp_path / "logs", results=lambda: {"worker-1": tmp_path / "results"},
        redis=redis_server(), database_url=postgres.create(), secrets=planted.planted(),
    )  # fmt: skip
    assert (list(history._keys(made)), planted.seen(made)) == ([], [])

    (tmp_path / "logs" / "server.log").write_text("Authorization: Bearer tf_this_is_the_admin_key")
    (tmp_path / "results" / "job.json").write_text(made.secrets[planted.S3_SECRET])
    with made.redis.client as client:
        client.xadd("stream", {"password": PASSWORD})
        client.xgroup_create("stream", "readers", id="0")
        client.xreadgroup("readers", "one", {"stream": ">"})
    with postgres.connect(made.database_url) as row:
        row.execute("CREATE TABLE kept (secret text)")
        row.execute("INSERT INTO kept VALUES (%s), (%s)", (made.secrets[planted.WEBHOOK], made.secrets[planted.PROXY]))
    assert ["1 entries of Redis stream stream" in each for each in history._keys(made)] == [True]
    told = planted.seen(made)
    wanted = {
        "the server's admin key": "server.log", planted.S3_SECRET: "job.json", "the database's password": "Redis",
        planted.PROXY: "table kept",
    }  # fmt: skip
    assert len(told) == len(wanted), told
    for name, place in wanted.items():
        assert any(each.startswith(f"{name} is in ") and place in each for each in told), told
