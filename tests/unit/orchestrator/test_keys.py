"""Keys, roles, login codes and sessions; signals."""

from __future__ import annotations

import asyncio
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.postgres.everywhere import Everywhere
from tests.unit.orchestrator.lab import Lab
from tunefleet.db import Connection
from tunefleet.errors import AuthError, ForbiddenError, NotFoundError, StoreError
from tunefleet.orchestrator import ids
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.pubsub import MAX_TOPICS, PubSub
from tunefleet.schemas.api import KeyCreate
from tunefleet.settings import ServerSettings


async def test_the_first_start_makes_keys_that_only_this_user_can_read(lab: Lab) -> None:
    folder = lab.core.settings.data_dir / "keys"
    before = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(before) == {"admin.key", "worker.key"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    await api_keys.ensure_first(lab.core)
    assert {path.name: path.read_text() for path in folder.iterdir()} == before
    assert (lab.admin.role, lab.worker_key.role) == ("admin", "worker")


async def test_a_key_that_is_revoked_while_it_is_looked_up_is_not_remembered(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await api_keys.create(lab.core, lab.admin, KeyCreate(name="alice", role="member"))
    read = type(lab.core).read

    async def slow(self: ServerContext, operation: Callable[[Connection], Any]) -> Any:
        found = await read(self, operation)
        monkeypatch.undo()
        await api_keys.revoke(lab.core, lab.admin, made.id)
        return found

    monkeypatch.setattr(ServerContext, "read", slow)
    assert (await api_keys.authenticate(lab.core, made.secret)).owner == "alice"
    with pytest.raises(AuthError, match="revoked"):
        await api_keys.authenticate(lab.core, made.secret)


async def test_a_revoked_key_is_worthless_at_once(lab: Lab) -> None:
    made = await api_keys.create(lab.core, lab.admin, KeyCreate(name="alice", role="member"))
    assert made.secret.startswith("tf_")
    assert len(made.secret) == 43
    actor = await api_keys.authenticate(lab.core, made.secret)
    assert (actor.owner, actor.role) == ("alice", "member")
    session = await api_keys.redeem_login_code(lab.core, await api_keys.create_login_code(lab.core, actor))
    assert (await api_keys.revoke(lab.core, lab.admin, made.id)).revoked_at is not None
    with pytest.raises(AuthError, match="revoked"):
        await api_keys.authenticate(lab.core, made.secret)
    with pytest.raises(AuthError):
        await api_keys.authenticate_session(lab.core, session)
    with pytest.raises(AuthError, match="not valid"):
        await api_keys.authenticate(lab.core, "tf_nonsense")


async def test_a_key_may_belong_to_somebody_who_has_one_already(lab: Lab) -> None:
    made = await api_keys.create(lab.core, lab.admin, KeyCreate(name="laptop", role="member", owner="alice"))
    assert made.owner == "alice"
    assert made.secret not in str(await api_keys.list_(lab.core, lab.admin))


async def test_only_admins_manage_keys(lab: Lab) -> None:
    member = await lab.actor("alice", "member")
    with pytest.raises(ForbiddenError):
        await api_keys.create(lab.core, member, KeyCreate(name="x"))
    with pytest.raises(ForbiddenError):
        await api_keys.list_(lab.core, member)
    with pytest.raises(ForbiddenError):
        await api_keys.revoke(lab.core, member, member.key_id)
    with pytest.raises(NotFoundError):
        await api_keys.revoke(lab.core, lab.admin, "key-nothing")


async def test_who_has_no_key_is_given_no_login_code(lab: Lab) -> None:
    with pytest.raises(ForbiddenError, match="requires an API key"):
        await api_keys.create_login_code(lab.core, replace(lab.admin, key_id="camp-0123456789ab"))


async def test_a_login_code_opens_one_session_within_ten_minutes(lab: Lab) -> None:
    code = await api_keys.create_login_code(lab.core, lab.admin)
    session = await api_keys.redeem_login_code(lab.core, code)
    assert await api_keys.authenticate_session(lab.core, session) == lab.admin
    with pytest.raises(AuthError, match="used"):
        await api_keys.redeem_login_code(lab.core, code)
    late = await api_keys.create_login_code(lab.core, lab.admin)
    lab.clock.advance(api_keys.LOGIN_CODE_S + 1)
    with pytest.raises(AuthError):
        await api_keys.redeem_login_code(lab.core, late)
    lab.clock.advance(api_keys.SESSION_S)
    with pytest.raises(AuthError, match="ended"):
        await api_keys.authenticate_session(lab.core, session)


def test_tokens_are_proof_and_ids_sort() -> None:
    token = ids.attempt_token(b"secret", "att-1")
    assert ids.attempt_of(b"secret", token) == "att-1"
    assert ids.attempt_of(b"other", token) is None
    assert ids.attempt_of(b"secret", token[:-1] + ("0" if token[-1] != "0" else "1")) is None
    assert ids.attempt_of(b"secret", "nonsense") is None
    assert ids.attempt_of(b"secret", "größer.x") is None
    made = [ids.new_ordered_id("att") for _ in range(1000)]
    assert made == sorted(set(made))
    assert {len(id_) for id_ in made} == {16}


def test_a_data_folder_keeps_its_secret_and_has_one_server(tmp_path: Path) -> None:
    settings = ServerSettings(data=tmp_path / "data")
    first = open_context(settings)
    with pytest.raises(StoreError, match="in use by process"):
        open_context(settings)
    first.close()
    second = open_context(settings)
    assert second.secret == first.secret
    second.close()


def test_a_folder_with_a_broken_database_can_be_opened_by_the_next(
    tmp_path: Path, everywhere: Everywhere | None
) -> None:
    if everywhere is not None:
        pytest.skip("the database is no file")
    settings = ServerSettings(data=tmp_path / "data")
    settings.data_dir.mkdir()
    (settings.data_dir / "tunefleet.db").write_bytes(b"broken" * 100)
    for _ in range(2):
        with pytest.raises(StoreError, match="damaged"):
            open_context(settings)
    (settings.data_dir / "tunefleet.db").unlink()
    open_context(settings).close()


async def test_a_signal_that_comes_early_is_not_lost() -> None:
    signals = PubSub()
    seen = signals.version("x")
    signals.notify("x")
    assert await asyncio.wait_for(signals.wait("x", 60.0, seen), 1) > seen


async def test_signals_cross_threads_and_time_out() -> None:
    signals = PubSub()
    waiting = [asyncio.create_task(signals.wait("x", 60.0)) for _ in range(3)]
    await asyncio.sleep(0.01)
    threading.Thread(target=signals.notify, args=("y", "x")).start()
    assert set(await asyncio.wait_for(asyncio.gather(*waiting), 2)) == {signals.version("x")}
    assert await signals.wait("x", 0.01) == signals.version("x")
    assert not signals._waiters


async def test_a_closed_signal_wakes_everybody_for_good() -> None:
    signals = PubSub()
    waiting = asyncio.create_task(signals.wait("x", 60.0))
    await asyncio.sleep(0.01)
    signals.close()
    await asyncio.wait_for(waiting, 1)
    assert signals.closed
    await asyncio.wait_for(signals.wait("z", 60.0), 1)


async def test_a_waiter_that_gives_up_leaves_nothing_behind() -> None:
    signals = PubSub()
    waiting = asyncio.create_task(signals.wait("x", 60.0))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not signals._waiters
    signals.notify("x")


async def test_forgetting_topics_wakes_in_vain_rather_than_never() -> None:
    signals = PubSub()
    seen = signals.version("quiet")
    waiting = asyncio.create_task(signals.wait("asleep", 60.0))
    await asyncio.sleep(0.01)
    for number in range(MAX_TOPICS + 1):
        signals.notify(f"task:{number}")
    assert len(signals._versions) < MAX_TOPICS
    assert await asyncio.wait_for(signals.wait("quiet", 60.0, seen), 1) > seen
    signals.notify("asleep")
    await asyncio.wait_for(waiting, 1)
