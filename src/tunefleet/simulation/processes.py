"""The parent's side of the worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from types import TracebackType
from typing import Any, Final, Self

from tunefleet.errors import MachineError
from tunefleet.settings import inherited_environment
from tunefleet.simulation.load_report import CrowdEnd, CrowdTick
from tunefleet.simulation.plan import CrowdPlan, Plan, ServerConnection

# The final message of a process contains every attempt.
_LINE_BYTES: Final = 1 << 30
_LEAVE_S: Final = 60.0
# Each worker leaves with an exchange and a commit on a server that may be busy.
_LEAVE_EACH_S: Final = 0.05
# Workers per process; fewer with Redis, where each worker has three threads.
_SHARES: Final = {"http": 1_000, "redis": 250}


class Crowds:
    """The worker processes of a plan; an async context manager that leaves no process behind.

    Args:
        processes: Number of processes; by workers and cores if None.
    """

    def __init__(self, plan: Plan, connection: ServerConnection, processes: int | None = None) -> None:
        wanted = processes or min(max(1, (os.cpu_count() or 1) - 1), -(-plan.workers // _SHARES[connection.link]))
        self.count = min(wanted, plan.workers)
        self._plan, self._connection = plan, connection
        self._ones: list[_WorkerProcess] = []

    async def start(self) -> None:
        """Start the processes, and wait until all workers have registered.

        Raises:
            MachineError: If one of them fails, with its message.
        """
        bounds = [round(number * self._plan.workers / self.count) for number in range(self.count + 1)]
        for first, last in itertools.pairwise(bounds):
            share = CrowdPlan(plan=self._plan, connection=self._connection, first=first, count=last - first)
            one = _WorkerProcess()
            self._ones.append(one)
            await one.start(share)
        await asyncio.gather(*(one.ready() for one in self._ones))

    @property
    def tick(self) -> CrowdTick:
        """Total progress of all processes."""
        ticks = [one.tick for one in self._ones]
        return CrowdTick.model_validate(
            {name: sum(getattr(tick, name) for tick in ticks) for name in ("offers", "ended", "exchanges", "faults")}
        )

    def check(self) -> None:
        """Raise `MachineError` if a process has failed."""
        for one in self._ones:
            one.check()

    async def leave(self) -> None:
        """Let all workers leave, even of failed processes; may be called again."""
        await asyncio.gather(*(one.stop() for one in self._ones))

    async def stop(self) -> list[CrowdEnd]:
        """Let all workers leave, and return the final messages of the processes.

        Raises:
            MachineError: If a process has failed.
        """
        ends = await asyncio.gather(*(one.stop() for one in self._ones))
        self.check()
        received = [end for end in ends if end is not None]
        if len(received) < len(ends):
            raise MachineError(f"{len(ends) - len(received)} processes of simulated workers did not leave in time.")
        return received

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(one.kill() for one in self._ones))


class _WorkerProcess:
    """One worker process."""

    def __init__(self) -> None:
        self.tick = CrowdTick(offers=0, ended=0, exchanges=0, faults=0)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()
        self._end: CrowdEnd | None = None
        self._failed: MachineError | None = None
        self._leave_s = _LEAVE_S

    async def start(self, share: CrowdPlan) -> None:
        self._leave_s = _LEAVE_S + _LEAVE_EACH_S * share.plan.workers
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tunefleet.simulation",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LINE_BYTES,
            env=inherited_environment(), start_new_session=True,
        )  # fmt: skip
        self._reader = asyncio.create_task(self._read())
        assert self._process.stdin is not None
        self._process.stdin.write(_text(share).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # it has ended: `_read` reports why
            await self._process.stdin.drain()

    async def ready(self) -> None:
        await self._is_ready.wait()
        self.check()

    def check(self) -> None:
        if self._failed is not None:
            raise self._failed

    async def stop(self) -> CrowdEnd | None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._reader is not None:
            await asyncio.wait({self._reader}, timeout=self._leave_s)
        return self._end

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            await asyncio.wait({self._reader})

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            try:
                self._take(json.loads(line))
            except ValueError as error:
                self._failed = MachineError(
                    "A process of simulated workers returned a message that cannot be parsed.", detail=str(error)
                )
        if self._end is None and self._failed is None:
            code = await self._process.wait()
            self._failed = MachineError(f"A process of simulated workers ended with status {code}.")
        self._is_ready.set()

    def _take(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "tick":
                self.tick = CrowdTick.model_validate(message)
            case "end":
                self._end = CrowdEnd.model_validate(message)
            case "failed":
                self._failed = MachineError(message["message"], hint=message["hint"])
                self._is_ready.set()  # unblocks `ready`, which raises the error
            case "ready":
                self._is_ready.set()


def _text(share: CrowdPlan) -> str:
    return share.model_dump_json()
