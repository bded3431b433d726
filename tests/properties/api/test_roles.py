"""Every route has a decision about every role, and `roles.txt` is that decision, read by people."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from tests.integration.api.support import HandWorker, Running, submit
from tests.integration.api.test_campaigns import apply
from tests.integration.api.test_isolation import MARK, OURS, Known
from tests.properties.api.roles import PARTICIPANT, TABLE, WHO, Asker, cells, lines_of, routes, written
from tunefleet.api.routers import install
from tunefleet.campaign.service.engine_token import token_of
from tunefleet.db.tables.core import metadata

CHAT = """apiVersion: tunefleet/v1
metadata: {name: talk}
spec: {taskType: chat, model: {source: {identifier: tiny}}}
"""


@pytest.fixture
def askers(
    running: Running, first: Known, admin: httpx.Client, member: Callable[..., httpx.Client]
) -> dict[str, Asker]:
    """One of each kind, all in the project of what there is, none of them its owner."""

    def with_(secret: str | None, **more: Any) -> Asker:
        return Asker(running.client(secret), **more)

    second = admin.post("/keys", json={"name": "second", "role": "admin", "project": MARK}).json()["secret"]
    own = member(MARK)
    hand = HandWorker(member(MARK, role="worker"), "second-box")
    hand.register()
    task_id = submit(own)
    attempt = hand.take(task_id)
    made = own.post("/federations", json={"name": "second-fed"}).json()
    campaign = apply(own, "second-camp")
    mine = {"federation_id": made["id"], "job_id": str(made["number"])}
    named = own.get(f"/federations/{made['id']}/token", params={"worker": PARTICIPANT}).json()["token"]
    return {
        "nobody": with_(None),
        "viewer": Asker(member(MARK, role="viewer"), others=True),
        "member": Asker(own, others=True),
        "admin": with_(second),
        "operator": with_(running.admin_key),
        "worker": Asker(member(MARK, role="worker"), others=True),
        "attempt": with_(attempt, others=True, own={"task_id": task_id, "job_id": task_id}),
        "federation": with_(made["token"], others=True, own=mine),
        "participant": with_(
            named, others=True, own=mine | dict.fromkeys(("participant", "worker", "worker_id"), PARTICIPANT)
        ),
        "campaign": with_(token_of(running.core.secret, campaign), others=True),
    }


@pytest.mark.story
@pytest.mark.timeout(600)
def test_the_table_of_routes_and_roles_is_what_the_server_does(
    running: Running,
    first: Known,
    admin: httpx.Client,
    member: Callable[..., httpx.Client],
    askers: dict[str, Asker],
) -> None:
    owner = member(MARK, role="admin")
    known = {**first.ids, "number": "7", "chat_id": submit(owner, CHAT), "file": install.wheel_name()}
    before = _theirs(running)
    found = [
        written(route, cells(route, running.url, askers, known, owner))
        for route in routes(running.server.config.app, admin.get("/openapi.json").json())
    ]
    wanted = lines_of(TABLE)[1:]
    differs = "\n".join(difflib.unified_diff(wanted, found, "roles.txt", "the server", lineterm="", n=0))
    assert not differs, f"Decide, and write the lines of the server into {TABLE.name} if they are right:\n{differs}"
    assert _theirs(running) == before


def test_what_nobody_may_do_is_said_of_every_route() -> None:
    first, *lines = lines_of(TABLE)
    assert first.split()[2:] == list(WHO)
    assert all(len(line.split()) == 2 + len(WHO) for line in lines)


def _theirs(running: Running) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of the owner of what there is."""

    def read(connection: Any) -> dict[str, list[tuple[Any, ...]]]:
        found = {}
        for name in OURS:
            table = metadata.tables[name]
            rows = select(table).where(table.c.project == MARK)
            if "owner" in table.c:
                rows = rows.where(table.c.owner == f"{MARK}-admin")
            found[name] = [tuple(row) for row in connection.execute(rows)]
        return found

    return running.core.db.read(read).result()
