"""Our own server as a provider: a training that was submitted just before a kill is found, to be cancelled."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import orjson

from tests.unit.campaign.service.desk import spec
from tunefleet.campaign.contract import Base, Material, Order
from tunefleet.campaign.providers.local import LocalProvider, training


class Server:
    """Has workflows, each with the document of an order."""

    def __init__(self, *made: tuple[str, float, Order]) -> None:
        self.made = {
            id_: SimpleNamespace(
                id=id_, name=order.name, created_at=datetime.fromtimestamp(at, UTC),
                tasks=(SimpleNamespace(id=f"task-of-{id_}"),), document=orjson.dumps(training(order)).decode(),
            )
            for id_, at, order in made
        }  # fmt: skip
        self.workflows = SimpleNamespace(list=self._list, get=self._get)

    async def _list(self, *, name: str, limit: int) -> Any:
        return SimpleNamespace(items=[each for each in self.made.values() if each.name == name][:limit])

    async def _get(self, id_: str) -> Any:
        return self.made[id_]


def order(artifact: str, since: float | None) -> Order:
    given = spec()
    data = Material("task", artifact, "d", 1)
    base = Base(given.model_repo)
    return Order("camp-1/0", "daily-0", base, data, 8.0, given.task_type, given, since=since)


async def test_the_training_of_an_order_is_found_by_what_it_says_and_when() -> None:
    wanted = order("chunk", since=1000.0)
    earlier, other, own = ("w-1", 900.0, wanted), ("w-2", 1001.0, order("another", 1000.0)), ("w-3", 1001.0, wanted)

    async def found(*made: tuple[str, float, Order], of: Order = wanted) -> str | None:
        client: Any = Server(*made)
        return await LocalProvider(client).find(of)

    assert await found(earlier, other, own) == "task-of-w-3"
    assert await found(earlier, other) is None
    assert await found(own, of=order("chunk", since=None)) is None
