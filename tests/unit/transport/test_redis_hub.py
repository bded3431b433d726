"""How a server and its Redis link end, whatever a library does with a cancellation."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.api.background import Lifetime
from tunefleet.orchestrator.pubsub import PubSub
from tunefleet.transport.redis import server


class Deaf:
    """A step that swallows its first cancellations, as `asyncio.wait_for` may before Python 3.12."""

    def __init__(self, times: int) -> None:
        self.left, self.steps = times, 0

    async def __call__(self) -> None:
        self.steps += 1
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            if not self.left:
                raise
            self.left -= 1


async def _fails() -> None:
    await asyncio.sleep(0.01)
    raise OSError("Redis is away")


@pytest.mark.timeout(20)
async def test_a_swallowed_cancellation_does_not_keep_a_link_that_failed() -> None:
    deaf = Deaf(times=1)
    with pytest.raises(OSError, match="Redis is away"):
        await server._repeat_concurrently(deaf, _fails)
    assert deaf.left == 0
    steps = deaf.steps
    await asyncio.sleep(0.05)
    assert deaf.steps == steps


@pytest.mark.timeout(20)
async def test_a_swallowed_cancellation_does_not_keep_a_link_that_is_to_end() -> None:
    one, other = Deaf(times=1), Deaf(times=1)
    link = asyncio.create_task(server._repeat_concurrently(one, other))
    await asyncio.sleep(0.02)
    link.cancel()
    with pytest.raises(asyncio.CancelledError):
        await link
    steps = one.steps, other.steps
    await asyncio.sleep(0.05)
    assert (one.steps, other.steps) == steps


@pytest.mark.timeout(20)
async def test_a_server_ends_though_a_loop_swallows_its_cancellation() -> None:
    core: Any = SimpleNamespace(signals=PubSub())
    deaf = Deaf(times=2)

    async def loop() -> None:
        while True:
            await deaf()

    running = asyncio.create_task(loop())
    await asyncio.sleep(0.02)
    try:
        await Lifetime(core, _tasks=[running]).close()
        assert running.cancelled()
    finally:
        deaf.left = 0  # else it would keep the loop of a test that has failed
