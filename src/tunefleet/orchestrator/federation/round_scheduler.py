"""Look after rounds: close those whose deadline is over, and work on closed ones, each by one holder at a time.

A holder takes a round by compare-and-swap for a short lease and renews it while it works. Whoever is killed stops
renewing, and the next one, here or on another server, goes on from the status that the round has. A full disk, or a
store that does not answer, is waited for; what is wrong with an update ends the round.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tunefleet.db import Connection
from tunefleet.db.federations import federations, rounds
from tunefleet.db.federations.federation_updates import UpdateRow
from tunefleet.db.federations.rounds import RoundRow
from tunefleet.errors import InputError, NotFoundError, TunefleetError
from tunefleet.lifecycle.round import RoundReason, RoundStatus
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.federation import adapter_files, aggregation, version_publisher
from tunefleet.orchestrator.federation import rounds as verbs
from tunefleet.orchestrator.federation.aggregation import Blamed
from tunefleet.orchestrator.federation.status import TOPIC

log = logging.getLogger(__name__)

LEASE_S: Final = 10.0
RENEW_S: Final = 3.0
LOOK_S: Final = 30.0
"""What is due is looked for when something changes; this often even if nothing does."""
FIRST_PAUSE_S: Final = 2.0
MAX_PAUSE_S: Final = 60.0
MAX_FAULTS: Final = 3
"""How often a round is tried on which the server itself comes to grief."""
_AT_ONCE: Final = 2
_WAITING: Final = frozenset({RoundStatus.SAMPLING.value, RoundStatus.COLLECTING.value})


def pause_s(tries: int) -> float:
    """Return how long to wait after so many tries."""
    return min(FIRST_PAUSE_S * 2.0 ** min(tries - 1, 16), MAX_PAUSE_S)


class RoundKeeper:
    """Looks after the rounds of all federations of a server."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._work: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._swept = False

    async def run_once(self) -> None:
        """Start what is due, then wait until something else may be."""
        signals = self._core.signals
        seen = signals.version(TOPIC)
        if not self._swept:
            await self._sweep()
        await signals.wait(TOPIC, await self.start_due(), seen)

    async def start_due(self) -> float:
        """Close rounds whose time has come, and start to work on closed ones that nobody works on.

        Returns:
            In how many seconds to look again, unless something changes before.
        """
        core = self._core
        now = core.clock.wall()
        found, lacking = await core.read(_look)
        late = {row.federation_seq for row in found if row.status in _WAITING and _is_due(row, now)}
        for seq in sorted(late | set(lacking)):
            await self._tick(seq, now)
        closed = [row for row in found if row.status not in _WAITING]
        if late or lacking:
            closed = [row for row in (await core.read(_look))[0] if row.status not in _WAITING]
        for row in closed:
            if rounds.due_at(row) <= now and (row.federation_seq, row.number) not in self._work:
                self._start(row)
        later = [rounds.due_at(row) - now for row in found if rounds.due_at(row) > now]
        return min([LOOK_S, *later])

    async def drain(self) -> None:
        """Wait until nothing is being worked on any more."""
        while self._work:
            await asyncio.gather(*self._work.values())

    async def close(self) -> None:
        """Stop, and let somebody else have what is not done."""
        for task in self._work.values():
            task.cancel()
        await asyncio.gather(*self._work.values(), return_exceptions=True)

    async def _tick(self, seq: int, now: float) -> None:
        try:
            await self._core.write(partial(verbs.tick, seq=seq, now=now))
        except Exception:
            # One that cannot be read, after an upgrade say, must not hold up the others.
            log.exception("Federation %d is left to a later look.", seq)

    def _start(self, row: RoundRow) -> None:
        key = (row.federation_seq, row.number)
        self._work[key] = asyncio.create_task(self._attend(row), name=f"round {key[1]} of federation {key[0]}")

    async def _attend(self, row: RoundRow) -> None:
        core, key = self._core, (row.federation_seq, row.number)
        try:
            async with self._turns:
                await self._take(row)
        except Exception:
            log.exception("Round %d of federation %d is left to a later look.", key[1], key[0])
            await asyncio.sleep(FIRST_PAUSE_S)
        finally:
            self._work.pop(key, None)
            core.signals.notify(TOPIC)

    async def _take(self, row: RoundRow) -> None:
        core, holder = self._core, f"hold-{secrets.token_hex(8)}"
        now = core.clock.wall()
        claim = partial(rounds.claim, row=row, holder=holder, now=now, until=now + LEASE_S)
        taken = await core.write(claim)
        if taken is None:
            return
        folder = adapter_files.work_folder(core, holder)
        if row.holder is not None:
            # Whoever had it and did not renew it may have been killed on this machine.
            await asyncio.to_thread(shutil.rmtree, adapter_files.work_folder(core, row.holder), ignore_errors=True)
        try:
            async with self._renewing(taken, holder):
                await self._do(taken, holder, folder)
        except asyncio.CancelledError:
            # The server stops; the next one need not wait for the lease.
            await core.write(partial(rounds.release, row=taken, holder=holder, until=0.0, error=None))
            raise
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _do(self, taken: RoundRow, holder: str, folder: Path) -> None:
        started = self._core.clock.monotonic()
        outcome = await self._try(taken, holder, folder)
        if self._core.meters is not None:
            self._core.meters.aggregations.labels(outcome).inc()
            self._core.meters.aggregation_s.labels(outcome).observe(self._core.clock.monotonic() - started)

    async def _try(self, taken: RoundRow, holder: str, folder: Path) -> str:
        """Try once, and return what came of it: `made`, `later` or `failed`."""
        try:
            await self._go_on(taken, holder, folder)
        except Blamed as blame:
            error = f"Update {blame.update.seq} of {blame.update.worker}: {blame.error.message}"
            await self._end(taken, holder, RoundReason.UPDATE_REFUSED, error, blame.update)
        except (InputError, NotFoundError) as refusal:
            await self._end(taken, holder, RoundReason.UPDATE_REFUSED, refusal.message)
        except (TunefleetError, OSError) as error:
            await self._later(taken, holder, error.message if isinstance(error, TunefleetError) else str(error))
            return "later"
        except Exception as error:
            log.exception("Round %d of federation %d cannot be finished.", taken.number, taken.federation_seq)
            why = f"The server has a fault ({type(error).__name__}); its log says more."
            if taken.tries < MAX_FAULTS:
                await self._later(taken, holder, why)
                return "later"
            await self._end(taken, holder, RoundReason.SERVER_FAULT, why)
        else:
            return "made"
        return "failed"

    async def _go_on(self, taken: RoundRow, holder: str, folder: Path) -> None:
        core = self._core
        work = await core.read(partial(aggregation.look, current=taken))
        if work is None:
            return
        if taken.status == RoundStatus.AGGREGATING:
            made = await aggregation.make(core, work, folder)
            version = await version_publisher.at_once(core, work, made, holder)
        else:
            # A server of before has left it there; what it made need not be made again.
            version = await version_publisher.run(core, work, holder)
        if version is not None:
            log.info("%s has version %d, of round %d.", work.federation.id, version.version, taken.number)

    async def _end(
        self, taken: RoundRow, holder: str, reason: RoundReason, error: str, blamed: UpdateRow | None = None
    ) -> None:
        log.warning("Round %d of federation %d failed: %s", taken.number, taken.federation_seq, error)
        now = self._core.clock.wall()
        how: dict[str, Any] = {"holder": holder, "reason": reason, "error": error, "blamed": blamed}
        await self._core.write(partial(_fail, taken=taken, now=now, **how))

    async def _later(self, taken: RoundRow, holder: str, reason: str) -> None:
        until = self._core.clock.wall() + pause_s(taken.tries)
        log.warning("Round %d of federation %d is tried again: %s", taken.number, taken.federation_seq, reason)
        await self._core.write(partial(rounds.release, row=taken, holder=holder, until=until, error=reason))

    @contextlib.asynccontextmanager
    async def _renewing(self, taken: RoundRow, holder: str) -> AsyncIterator[None]:
        renewal = asyncio.create_task(self._renew(taken, holder))
        try:
            yield
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)

    async def _renew(self, taken: RoundRow, holder: str) -> None:
        core = self._core
        while True:
            await asyncio.sleep(RENEW_S)
            until = core.clock.wall() + LEASE_S
            try:
                kept = await core.write(partial(rounds.renew, row=taken, holder=holder, until=until))
            except TunefleetError as error:
                log.warning("Round %d of federation %d is not renewed: %s", taken.number, taken.federation_seq, error)
                continue
            if not kept:
                log.warning("Round %d of federation %d is somebody else's now.", taken.number, taken.federation_seq)
                return

    async def _sweep(self) -> None:
        """Remove what servers that were killed have left lying around."""
        core = self._core
        holders = await core.read(partial(rounds.held_by, now=core.clock.wall()))
        await asyncio.to_thread(_remove, partial(adapter_files.leftovers, core, holders))
        self._swept = True


def _look(connection: Connection) -> tuple[list[RoundRow], list[int]]:
    # Nobody tells of a part that goes back into the queue, or is paused, while its round waits for it alone.
    left = [seq for seq in rounds.of_trainings(connection) if verbs.has_all_it_awaits(connection, seq)]
    return rounds.to_look_after(connection), rounds.without_round(connection) + left


def _is_due(row: RoundRow, now: float) -> bool:
    return row.status == RoundStatus.SAMPLING or rounds.due_at(row) <= now


def _fail(connection: Connection, *, taken: RoundRow, now: float, **how: Any) -> None:
    row = federations.by_seq(connection, taken.federation_seq, lock=True)
    # It may have come as far as publishing meanwhile, or have been given up.
    current = None if row is None else rounds.get(connection, row.seq, taken.number)
    if row is not None and current is not None and not RoundStatus(current.status).final:
        verbs.fail(connection, row, current, now=now, **how)


def _remove(leftovers: Callable[[], list[Path]]) -> None:
    for folder in leftovers():
        shutil.rmtree(folder, ignore_errors=True)
