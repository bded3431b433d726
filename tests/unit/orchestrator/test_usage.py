"""What attempts use is stored when they end, counted while they run, and adds up however it is looked at."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.orchestrator.lab import ECHO, FakeWorker, Lab
from tests.unit.orchestrator.test_quotas import GPUS, ON_GPU, member, submit
from tunefleet.db import Connection
from tunefleet.db.access import usage as rows
from tunefleet.db.access.audit import AuditRow
from tunefleet.db.access.usage import UsageRow as UsedRow
from tunefleet.errors import NotFoundError
from tunefleet.orchestrator.access import audit_log
from tunefleet.orchestrator.access.permissions import FederationActor
from tunefleet.orchestrator.fleet import usage
from tunefleet.orchestrator.scheduling import fair_share
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.telemetry import worker_load
from tunefleet.schemas.projects import UsageRow
from tunefleet.schemas.worker_link import GpuLoad, Load

ASKED = AuditRow(0, 0.0, None, None, None, None, "10.0.0.9", "POST", "/api/v1/keys", "key_id=key-1", 201, "r-1")


async def used(lab: Lab, by: Any = "project", **more: Any) -> dict[str, UsageRow]:
    view = await usage.report(lab.core, more.pop("who", lab.admin), project=None, since=more.get("since"), by=by)
    assert view.total.gpu_s == pytest.approx(sum(row.gpu_s for row in view.rows))
    assert view.total.attempts == sum(row.attempts for row in view.rows)
    return {row.key: row for row in view.rows}


async def told(lab: Lab, worker: FakeWorker, watts: float) -> None:
    gpus = tuple(GpuLoad(uuid=gpu.uuid, power_w=watts) for gpu in GPUS)
    load = Load(memory_free_bytes=1, disk_free_bytes=1, load_1m=0.0, load_5m=0.0, load_15m=0.0, uptime_s=1.0, gpus=gpus)
    await worker.exchange(load=load)
    await worker_load.flush(lab.core)


async def test_gpu_time_energy_and_cost_of_an_attempt(lab: Lab) -> None:
    red, worker = await member(lab, "red"), await lab.online()
    await worker.register(gpus=GPUS, cost_per_hour=3.0)
    await submit(lab, red, ON_GPU)
    offer = await worker.start()
    begun = lab.clock.wall
    await told(lab, worker, 100.0)
    lab.clock.advance(360.0)
    await told(lab, worker, 300.0)
    live = (await used(lab))["red"]
    assert (live.attempts, live.wall_s, live.gpu_s) == (1, pytest.approx(360.0), pytest.approx(720.0))
    lab.clock.advance(360.0)
    await worker.finish(offer.token)
    row = (await used(lab))["red"]
    ran_s = lab.clock.wall - begun
    assert row.gpu_s_by_model == {"L40": pytest.approx(2 * ran_s)}
    # Two GPUs: from 100 to 300 W each, then 300 W each.
    assert row.energy_wh == pytest.approx((2 * 200 * 360 + 2 * 300 * 360) / 3600, rel=0.01)
    assert row.cost == pytest.approx(3.0 * ran_s / 3600)
    for by, key in (("worker", "w1"), ("kind", "lora_sft"), ("gpu", "L40")):
        assert (await used(lab, by))[key] == row.model_copy(update={"key": key})
    assert sum(each.gpu_s for each in (await used(lab, "day")).values()) == pytest.approx(row.gpu_s)


async def test_a_task_without_a_gpu_costs_its_slot(lab: Lab) -> None:
    worker = await lab.online()
    await worker.register(cost_per_hour=8.0)
    await lab.submit()
    offer = await worker.start()
    lab.clock.advance(3600.0)
    await worker.finish(offer.token)
    row = (await used(lab))["default"]
    assert (row.gpu_s, row.energy_wh) == (0.0, None)
    assert row.cost == pytest.approx(1.0, rel=0.01)  # one of eight slots


async def test_every_end_counts_once_and_outlives_its_task(lab: Lab) -> None:
    worker = await lab.online()
    lost, cancelled, offered = [await lab.submit() for _ in range(3)]
    offers = {offer.task_id: offer.token for offer in await worker.offers()}
    await worker.accept(offers[lost], offers[cancelled])
    lab.clock.advance(50.0)
    await tasks.cancel(lab.core, lab.admin, offered)
    await tasks.cancel(lab.core, lab.admin, cancelled)
    await worker.finish(offers[cancelled], "cancelled", "cancelled_by_user")
    worker.holding.clear()
    await worker.register()  # it has nothing any more
    row = (await used(lab))["default"]
    assert (row.attempts, row.wall_s) == (2, pytest.approx(100.0, abs=5))
    await tasks.remove(lab.core, lab.admin, cancelled)
    assert (await used(lab))["default"].attempts == 2


async def test_of_what_began_before_the_span_only_the_rest_counts(lab: Lab) -> None:
    worker = await lab.online()
    await lab.submit()
    offer = await worker.start()
    begun = lab.clock.wall
    lab.clock.advance(100.0)
    assert (await used(lab, since=begun + 75.0))["default"].wall_s == pytest.approx(25.0, abs=3)
    await worker.finish(offer.token)
    assert (await used(lab, since=begun + 75.0))["default"].wall_s == pytest.approx(25.0, abs=3)


async def test_nobody_sees_what_other_projects_have_used(lab: Lab) -> None:
    red, blue, worker = await member(lab, "red"), await member(lab, "blue"), await lab.online()
    await submit(lab, blue, ECHO)
    await worker.start()
    assert await used(lab, who=red) == {}
    with pytest.raises(NotFoundError):
        await usage.report(lab.core, red, project="blue", since=None, by="project")


async def test_use_and_log_are_forgotten_in_time(lab: Lab) -> None:
    worker = await lab.online()
    await lab.submit()
    await worker.finish((await worker.start()).token)
    await audit_log.write(lab.core, lab.admin, ASKED._replace(at=lab.clock.wall))
    lab.clock.wall += 399 * 86_400.0
    await usage.forget(lab.core)
    assert (await used(lab, since=0.0))["default"].attempts == 1
    assert len((await audit_log.list_(lab.core, lab.admin)).items) == 1
    lab.clock.wall += 2 * 86_400.0
    await usage.forget(lab.core)
    assert await used(lab, since=0.0) == {}
    assert (await audit_log.list_(lab.core, lab.admin)).items == ()


async def test_the_log_says_who_and_is_shown_by_project(lab: Lab) -> None:
    boss = await member(lab, "red", role="admin")
    await audit_log.write(lab.core, lab.admin, ASKED._replace(at=lab.clock.wall))
    await audit_log.write(lab.core, boss, ASKED._replace(at=lab.clock.wall, route="/api/v1/tasks", target=None))
    await audit_log.write(lab.core, None, ASKED._replace(at=lab.clock.wall, status=401))
    await audit_log.write(lab.core, FederationActor("fed-1"), ASKED)
    everything = (await audit_log.list_(lab.core, lab.admin)).items
    assert [(each.actor, each.status) for each in everything] == [(None, 401), ("red-admin", 201), ("admin", 201)]
    assert (everything[2].address, everything[2].target, everything[2].request_id) == (
        "10.0.0.9",
        "key_id=key-1",
        "r-1",
    )
    assert [each.actor for each in (await audit_log.list_(lab.core, boss)).items] == ["red-admin"]
    assert [
        each.actor for each in (await audit_log.list_(lab.core, lab.admin, route="/keys", owner="admin")).items
    ] == ["admin"]
    first = await audit_log.list_(lab.core, lab.admin, limit=2)
    rest = await audit_log.list_(lab.core, lab.admin, limit=2, cursor=first.next_cursor)
    assert (len(first.items), len(rest.items), rest.next_cursor) == (2, 1, None)
    assert (await audit_log.list_(lab.core, lab.admin, since=lab.clock.wall + 1)).items == ()


async def test_what_a_pass_that_was_undone_had_read_is_not_taken_for_used(lab: Lab) -> None:
    red, blue, worker = await member(lab, "red"), await member(lab, "blue"), await lab.online()
    for who, seconds in ((red, 3600.0), (blue, 1800.0)):
        await submit(lab, who)
        offer = await worker.start()
        lab.clock.advance(seconds)
        await worker.finish(offer.token)
    now, ledger = lab.clock.wall, lab.core.state(fair_share.Ledger)

    def stand(connection: Connection) -> dict[str, float]:
        found = fair_share.project_shares(connection, ledger, {"red", "blue"}, now) or {}
        return {name: share.used_s for name, share in found.items()}

    def undone(connection: Connection) -> None:
        row = UsedRow("a", "t", "blue", "b", "w", "echo", None, 0, now, now, "day", 9e9, 0.0, 0.0, 9e9, None, None)
        rows.add(connection, [row])
        stand(connection)
        raise NotFoundError("it was not to be")

    with pytest.raises(NotFoundError):
        await lab.core.write(undone)
    first, again = await lab.core.write(stand), await lab.core.write(stand)
    assert first == again
    assert first["red"] > first["blue"] > 0
