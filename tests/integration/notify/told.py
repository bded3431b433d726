"""What the tests of notifications share: make a channel, let a task end, deliver, verify."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fakes.receiver import Seen
from tests.unit.orchestrator.lab import ECHO, FakeClock, Lab
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.context import Clock
from tunefleet.orchestrator.notifications import channels, delivery
from tunefleet.orchestrator.notifications.delivery import DeliveryLoop
from tunefleet.schemas.notify import ChannelCreate, NotificationView
from tunefleet.settings import ServerSettings


@asynccontextmanager
async def opened(data: Path, clock: FakeClock, **settings: Any) -> AsyncIterator[Lab]:
    given = {"url_allow": ("127.0.0.1",), "public_base_url": "https://fleet.example.org/", **settings}
    core = open_context(
        ServerSettings(data=data, synchronous="NORMAL", **given),
        clock=Clock(lambda: clock.wall, lambda: clock.monotonic),
    )
    try:
        admin = await api_keys.authenticate(core, (data / "keys" / "admin.key").read_text().strip())
        worker_key = await api_keys.authenticate(core, (data / "keys" / "worker.key").read_text().strip())
        yield Lab(core, clock, admin, worker_key)
    finally:
        core.close()


async def deliver(lab: Lab) -> list[NotificationView]:
    """Deliver what is due, and return what became of everything, oldest first."""
    courier = DeliveryLoop(lab.core)
    try:
        await courier.start_due()
        await courier.drain()
    finally:
        await courier.close()
    return list((await delivery.list_notifications(lab.core, lab.admin)).items)[::-1]


async def channel(lab: Lab, to: str, actor: Actor | None = None, **more: Any) -> str | None:
    body = ChannelCreate(name=more.pop("name", "team"), to=to, **more)
    return (await channels.create(lab.core, actor or lab.admin, body)).secret


async def run(lab: Lab, document: str = ECHO, outcome: str = "completed", reason: str = "finished", **more: Any) -> str:
    """Submit a task and let it end."""
    task_id = await lab.submit(document)
    worker = await lab.online()
    offer = await worker.start()
    lab.clock.advance(75.0)
    await worker.finish(offer.token, outcome, reason, **more)
    return task_id


def verified(seen: Seen, secret: str, now: float) -> bool:
    """Do what docs/how-to/notifications.md tells receivers to do."""
    page = (Path(__file__).resolve().parents[3] / "docs/how-to/notifications.md").read_text(encoding="utf-8")
    snippet: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], snippet)
    return bool(snippet["verify"](secret, seen.headers, seen.body, now))
