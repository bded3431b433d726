"""What PostgreSQL and the network do to a server: killed connections, a restart, wrong addresses; nothing is lost."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text, update

from tests.integration.api.conftest import start  # noqa: F401 - a fixture
from tests.integration.api.support import ECHO, Running, is_problem, until
from tests.integration.postgres.process import PASSWORD, PostgresProcess
from tunefleet.db import Connection, Database, wake
from tunefleet.db.engine import offline
from tunefleet.db.engine import postgres as store_postgres
from tunefleet.db.engine.postgres import MAX_PAYLOAD_BYTES, payloads
from tunefleet.db.engine.writer import EVERYTHING
from tunefleet.db.tables.core import meta
from tunefleet.errors import StoreError
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.pubsub import PubSub
from tunefleet.settings import ServerSettings

pytestmark = pytest.mark.proof

WAIT_S = 60


@pytest.fixture
def opened() -> Iterator[Callable[..., Database]]:
    made: list[Database] = []

    def open_(url: str, **options: object) -> Database:
        made.append(Database.open(url, **options))  # type: ignore[arg-type]
        return made[-1]

    yield open_
    for each in made:
        each.close()


def put(name: str, *topics: str) -> Callable[[Connection], str]:
    def operation(connection: Connection) -> str:
        connection.execute(insert(meta).values(name=name, value=""))
        wake(connection, *topics)
        return name

    return operation


def names(connection: Connection) -> set[str]:
    return set(connection.execute(select(meta.c.name)).scalars())


# ---- connections that break ------------------------------------------------------------------------------------------


def test_a_connection_that_is_ended_in_mid_transaction_is_made_anew(
    postgres: PostgresProcess, postgres_url: str, opened: Callable[..., Database]
) -> None:
    database, ended = opened(postgres_url), []

    def operation(connection: Connection) -> int:
        connection.execute(insert(meta).values(name="once", value=""))
        if not ended:
            ended.append(postgres.end_connections(postgres_url))
        connection.execute(insert(meta).values(name="twice", value=""))
        return len(ended)

    before = database.write(put("before"))
    assert database.write(operation).result(WAIT_S) == 1
    assert before.result(WAIT_S) == "before"
    assert ended[0] >= 2  # the writer and what listens, at least
    assert database.read(names).result(WAIT_S) == {"before", "once", "twice"}


def test_a_whole_group_is_run_again_once(
    postgres: PostgresProcess, postgres_url: str, opened: Callable[..., Database]
) -> None:
    database, begun, gate = opened(postgres_url), threading.Event(), threading.Event()

    def held(_: Connection) -> None:
        begun.set()
        gate.wait(WAIT_S)

    busy = database.write(held)
    assert begun.wait(WAIT_S)
    group = [database.write(put(f"n{number}")) for number in range(20)]
    postgres.end_connections(postgres_url)
    gate.set()
    assert [future.result(WAIT_S) for future in group] == [f"n{number}" for number in range(20)]
    busy.exception(WAIT_S)
    assert len(database.read(names).result(WAIT_S)) == 20


def test_a_reader_whose_connection_was_ended_reads_again(
    postgres: PostgresProcess, postgres_url: str, opened: Callable[..., Database]
) -> None:
    database = opened(postgres_url)
    assert database.read(names).result(WAIT_S) == set()
    postgres.end_connections(postgres_url)
    assert database.read(names).result(WAIT_S) == set()


def test_an_end_in_the_commit_is_told_as_unknown(
    postgres: PostgresProcess, postgres_url: str, opened: Callable[..., Database]
) -> None:
    database = opened(postgres_url)
    with postgres.connect(postgres_url) as connection:
        # A trigger that runs in the commit itself, and ends its own connection there.
        connection.execute(
            "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
        )
        connection.execute(
            "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON meta DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW WHEN (new.name = 'doomed') EXECUTE FUNCTION die()"
        )
    with pytest.raises(StoreError, match="the outcome of the change is unknown") as caught:
        database.write(put("doomed")).result(WAIT_S)
    assert "Idempotency-Key" in str(caught.value)
    assert database.write(put("next")).result(WAIT_S) == "next"


def test_a_server_that_goes_away_and_comes_back(
    postgres_process: Callable[[], PostgresProcess], opened: Callable[..., Database]
) -> None:
    process, woken = postgres_process(), []
    url = process.create()
    database = opened(url, on_wake=woken.append)
    database.write(put("before")).result(WAIT_S)
    process.stop(signal.SIGQUIT)
    for _ in range(2):
        with pytest.raises(StoreError, match="is unreachable") as caught:
            database.write(put("lost")).result(WAIT_S)
        with pytest.raises(StoreError, match="is unreachable"):
            database.read(names).result(WAIT_S)
    assert PASSWORD not in str(caught.value.detail)
    process.start()
    assert database.write(put("after")).result(WAIT_S) == "after"
    assert database.read(names).result(WAIT_S) == {"before", "after"}
    # What others did meanwhile was not heard: everybody looks.
    until(lambda: frozenset({EVERYTHING}) in woken)
    process.remove()


# ---- several at once -------------------------------------------------------------------------------------------------


def test_servers_that_write_at_once_lose_nothing(postgres_url: str, opened: Callable[..., Database]) -> None:
    servers = [opened(postgres_url) for _ in range(3)]
    servers[0].write(lambda c: c.execute(insert(meta).values(name="count", value="0"))).result(WAIT_S)

    def one_more(connection: Connection) -> None:
        here = meta.c.name == "count"
        value = connection.execute(select(meta.c.value).where(here)).scalar_one()
        connection.execute(update(meta).where(here).values(value=str(int(value) + 1)))

    done: list[Future[None]] = [servers[number % 3].write(one_more) for number in range(300)]
    for future in done:
        future.result(WAIT_S)
    assert servers[1].read(lambda c: c.execute(select(meta.c.value)).scalar_one()).result(WAIT_S) == "300"


def test_another_process_wakes_who_waits_here(postgres_url: str, opened: Callable[..., Database]) -> None:
    woken: list[frozenset[str]] = []
    database = opened(postgres_url, on_wake=woken.append)
    topics = [f"task-{number:06}" for number in range(2_000)]  # more than one word of PostgreSQL's holds
    assert len(list(payloads("s", topics))) > 2
    assert all(len(payload) <= MAX_PAYLOAD_BYTES for payload in payloads("s" * 32, topics))
    code = (
        "import sys; from tunefleet.db import Database, wake\n"
        "database = Database.open(sys.argv[1])\n"
        "database.write(lambda c: wake(c, *(f'task-{n:06}' for n in range(2_000)))).result(60)\n"
        "database.close()"
    )
    subprocess.run([sys.executable, "-c", code, postgres_url], check=True, timeout=100)
    until(lambda: set().union(*woken) == set(topics))
    assert database.write(put("own", "mine")).result(WAIT_S) == "own"
    until(lambda: frozenset({"mine"}) in woken)
    assert woken.count(frozenset({"mine"})) == 1  # not heard again from itself


async def test_after_a_time_of_silence_everybody_looks() -> None:
    signals = PubSub()
    seen = {topic: signals.version(topic) for topic in ("known", "never named")}
    signals.notify("known")
    known = signals.version("known")
    waiting = asyncio.create_task(signals.wait("known", WAIT_S, known))
    await asyncio.sleep(0)
    signals.notify_all()
    assert await waiting != known  # who waited was woken
    assert signals.version("never named") != seen["never named"]  # who was about to wait does not


def test_what_is_rolled_back_wakes_nobody(postgres_url: str, opened: Callable[..., Database]) -> None:
    woken: list[frozenset[str]] = []
    opened(postgres_url, on_wake=woken.append)
    other = opened(postgres_url)

    def failing(connection: Connection) -> None:
        wake(connection, "wrong")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        other.write(failing).result(WAIT_S)
    other.write(put("right", "right")).result(WAIT_S)
    until(lambda: woken)
    assert woken == [frozenset({"right"})]


def test_two_servers_with_folders_of_their_own_share_a_database(postgres_url: str, tmp_path: Path) -> None:
    """What each has for itself lies in its own folder; the files of all are in one place."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "artifacts").symlink_to(tmp_path / "shared", target_is_directory=True)
    (tmp_path / "shared").mkdir()
    settings = [ServerSettings(data=tmp_path / name, database_url=postgres_url) for name in ("a", "b", "c")]
    one, two = (open_context(each) for each in settings[:2])
    try:
        assert one.secret == two.secret
        with pytest.raises(StoreError, match="in use by process"):
            open_context(settings[0])
        with pytest.raises(StoreError, match=r"The files of .* are not in .*/c/artifacts"):
            open_context(settings[2])
    finally:
        one.close()
        two.close()


# ---- what cannot be opened -------------------------------------------------------------------------------------------


def refusal(url: str) -> str:
    with pytest.raises(StoreError) as caught:
        Database.open(url)
    said = str(caught.value)
    assert PASSWORD not in said
    assert "p%40ss" not in said
    assert caught.value.hint
    return said


def test_wrong_addresses_are_refused_with_the_way_out(
    postgres: PostgresProcess, postgres_url: str, free_port: Callable[[], int]
) -> None:
    assert "password authentication failed" in refusal(postgres.url(password="wrong"))
    assert "Check the user and password" in refusal(postgres.url(user="nobody"))
    assert 'database "missing" does not exist' in refusal(postgres.url("missing"))
    nowhere = postgres.url().replace(f":{postgres.port}/", f":{free_port()}/")
    assert "Connection refused" in refusal(nowhere)
    assert "is not a valid database URL" in refusal("postgresql://a:b@c:not-a-port/x")
    assert "postgresql://tunefleet@127.0.0.1" in refusal(nowhere)


def test_a_role_that_lacks_rights_is_refused(postgres: PostgresProcess, postgres_url: str, postgres_url_2: str) -> None:
    name, other = (url.rpartition("/")[2] for url in (postgres_url, postgres_url_2))
    with postgres.connect(postgres_url) as connection:
        connection.execute("CREATE ROLE reader LOGIN PASSWORD 'r'")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    reads = postgres.url(name, user="reader", password="r")
    try:
        assert "lacks a permission" in refusal(reads)
        assert "lacks a permission" in refusal(postgres.url(other, user="reader", password="r"))
        with postgres.connect() as connection:
            connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        assert "is read-only" in refusal(postgres_url)
        assert offline.status_of(reads).current
    finally:
        with postgres.connect(postgres_url) as connection:
            for statement in ("SET default_transaction_read_only = off", "DROP OWNED BY reader", "DROP ROLE reader"):
                connection.execute(statement)


def test_too_few_connections_are_told(postgres: PostgresProcess, postgres_url_2: str) -> None:
    name = postgres_url_2.rpartition("/")[2]
    with postgres.connect() as connection:
        connection.execute("CREATE ROLE few LOGIN PASSWORD 'fewfew' CONNECTION LIMIT 1")
        connection.execute(f"ALTER DATABASE {name} OWNER TO few")
    try:
        assert "too many connections for role" in refusal(postgres.url(name, user="few", password="fewfew"))
    finally:
        with postgres.connect() as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            connection.execute("DROP ROLE few")


@pytest.fixture
def postgres_url_2(postgres: PostgresProcess) -> Iterator[str]:
    """A database without tables."""
    url = postgres.create()
    yield url
    postgres.drop(url)


def test_text_that_is_no_utf_8_is_refused(postgres: PostgresProcess) -> None:
    with postgres.connect() as connection:
        connection.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
    assert "has the encoding LATIN1" in refusal(postgres.url("latin"))


def test_a_standby_is_refused(postgres_process: Callable[[], PostgresProcess]) -> None:
    process = postgres_process()
    process.stop()
    (process.folder / "data/standby.signal").touch()
    process.start()
    try:
        assert "is a read-only standby" in refusal(process.url())
    finally:
        process.remove()


def test_a_postgresql_that_is_too_old_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The real one is new enough: it is the demand that is raised.
    monkeypatch.setattr(store_postgres, "LEAST_VERSION", 990_000)
    said = refusal(postgres_url)
    assert "is PostgreSQL 1" in said
    assert "which is too old" in said


def test_requests_are_refused_while_the_database_is_away_and_go_on_when_it_is_back(
    postgres_process: Callable[[], PostgresProcess],
    start: Callable[..., Running],  # noqa: F811
    tmp_path: Path,
) -> None:
    process = postgres_process()
    running = start(tmp_path / "data", database_url=process.create())
    try:
        _refused_and_taken_again(running, process)
    finally:
        # Whatever failed: a server that goes on to look for its database would warn in the tests that come next.
        running.stop()
        running.core.close()
        process.remove()


def _refused_and_taken_again(running: Running, process: PostgresProcess) -> None:
    with running.client(running.admin_key) as admin, running.client("tf_unknown") as stranger:
        until(lambda: admin.get("/healthz").json()["role"] == "leads")
        assert admin.get("/tasks").status_code == 200
        process.stop(signal.SIGQUIT)
        changed = admin.post("/workflows", json={"document": ECHO})
        for reply, codes in (
            (admin.get("/tasks"), {"store_unusable"}),
            (stranger.get("/tasks"), {"store_unusable"}),
            # It cannot be in the audit log, either. Where a write of the server's own was cut off in its commit, the
            # server has forgotten the keys that it knew, and comes no further than to look this one up.
            (changed, {"unreachable", "store_unusable"}),
        ):
            code = reply.json()["type"].rpartition(":")[2]
            assert code in codes
            assert "Try again in a moment" in is_problem(reply, 503, code)["hint"]
            assert PASSWORD not in reply.text
        assert admin.get("/healthz").json()["status"] == "ok"
        process.start()
        until(lambda: admin.get("/tasks").status_code == 200)
        until(lambda: admin.post("/workflows", json={"document": ECHO}).status_code == 201)
        assert stranger.get("/tasks").status_code == 401


def test_a_character_that_postgresql_cannot_hold_is_shown(postgres_url: str, opened: Callable[..., Database]) -> None:
    database = opened(postgres_url)
    database.write(lambda c: c.execute(insert(meta).values(name="a\0b", value="x\0"))).result(WAIT_S)
    assert database.read(names).result(WAIT_S) == {"a\u2400b"}


def test_a_commit_that_reaches_no_disk_is_not_taken(
    postgres: PostgresProcess, postgres_url: str, opened: Callable[..., Database]
) -> None:
    with postgres.connect() as connection:
        connection.execute(f"ALTER DATABASE {postgres_url.rpartition('/')[2]} SET synchronous_commit = off")
    database = opened(postgres_url)
    assert database.write(lambda c: c.execute(text("SHOW synchronous_commit")).scalar_one()).result(WAIT_S) == "on"
