"""Samples the resource use of the server from outside during a load."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import psutil

from tunefleet.simulation.load_report import RedisCost, Sample, ServerCost
from tunefleet.transport.redis.connection import RedisUse, use_of

T = TypeVar("T")
_EVERY_S: Final = 0.5
_MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True, slots=True)
class Machine:
    """What can be sampled of the server; None if it cannot be accessed."""

    server_pid: int | None = None
    data: Path | None = None
    redis_url: str | None = None


class Sampler:
    """Samples the server twice a second."""

    def __init__(self, machine: Machine, ended: Callable[[], int]) -> None:
        self._machine, self._ended = machine, ended
        self._process = None if machine.server_pid is None else psutil.Process(machine.server_pid)
        self._on_disk = machine.data is not None and not _in_memory(machine.data)
        self._began = time.monotonic()
        self._first = self._sample()
        self._cpu_s = self._busy_from = self._cpu_now()
        self._at = self._busy_at = self._began
        self._written_from = self._written()
        self._redis_from = self._redis()
        self.samples: list[Sample] = [self._first]
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start sampling; CPU time from now on counts for the load."""
        self._busy_from, self._busy_at = self._cpu_now(), time.monotonic()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Take the last sample."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self.samples.append(await asyncio.to_thread(self._sample))

    def server(self, ended: int) -> ServerCost:
        """Return the resource use of the server."""
        last = self.samples[-1]
        ran_s = max(1e-9, time.monotonic() - self._busy_at)
        spent_s = None if (now := self._cpu_now()) is None else now - (self._busy_from or 0.0)
        written = self._written()
        return ServerCost(
            rss_start_bytes=self._first.rss_bytes,
            rss_end_bytes=last.rss_bytes,
            rss_max_bytes=max((each.rss_bytes for each in self.samples if each.rss_bytes), default=None),
            cpu_share=None if spent_s is None else round(spent_s / ran_s, 3),
            cpu_per_task_ms=None if spent_s is None or not ended else round(1e3 * spent_s / ended, 3),
            written_bytes=None if written is None or self._written_from is None else written - self._written_from,
            database_start_bytes=self._first.database_bytes,
            database_bytes=last.database_bytes,
        )

    def redis(self) -> RedisCost | None:
        """Return the Redis traffic since the start; None without Redis."""
        before, now = self._redis_from, self._redis()
        if before is None or now is None:
            return None
        return RedisCost(
            commands=now.commands - before.commands,
            input_bytes=now.input_bytes - before.input_bytes,
            output_bytes=now.output_bytes - before.output_bytes,
            memory_bytes=now.memory_bytes,
            clients=now.clients,
        )

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            self.samples.append(await asyncio.to_thread(self._sample))

    def _sample(self) -> Sample:
        now, share = time.monotonic(), None
        spent_s = self._cpu_now()
        before_s = getattr(self, "_cpu_s", None)
        if spent_s is not None and before_s is not None:
            share = round((spent_s - before_s) / max(1e-9, now - self._at), 3)
        self._cpu_s, self._at = spent_s, now
        return Sample(
            at_s=round(now - self._began, 3),
            rss_bytes=_of(self._process, lambda process: process.memory_info().rss),
            cpu_share=share,
            database_bytes=self._database(),
            ended=self._ended(),
        )

    def _cpu_now(self) -> float | None:
        return _of(self._process, lambda process: float(sum(process.cpu_times()[:2])))

    def _database(self) -> int | None:
        if self._machine.data is None:
            return None
        size_bytes = 0
        for file in self._machine.data.glob("*.db*"):
            with contextlib.suppress(FileNotFoundError):  # a WAL file that SQLite has just removed
                size_bytes += file.stat().st_size
        return size_bytes

    def _written(self) -> int | None:
        if self._process is None or not self._on_disk or not hasattr(self._process, "io_counters"):
            return None
        return _of(self._process, lambda process: int(process.io_counters().write_bytes))

    def _redis(self) -> RedisUse | None:
        return None if self._machine.redis_url is None else use_of(self._machine.redis_url)


def _of(process: psutil.Process | None, read: Callable[[psutil.Process], T]) -> T | None:
    """Return a value of a process; `None` if there is none, or it has ended, which the load itself reports."""
    try:
        return None if process is None else read(process)
    except psutil.NoSuchProcess:
        return None


def _in_memory(folder: Path) -> bool:
    """Whether a folder is in a memory file system, where writes reach no disk."""
    mounts = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    holder = next(
        each for each in (folder.resolve(), *folder.resolve().parents) if each in mounts or each.parent == each
    )
    return mounts.get(holder, "") in _MEMORY_FILE_SYSTEMS
