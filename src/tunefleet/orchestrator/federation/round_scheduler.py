"""Schedule rounds: close those past their deadline, and aggregate closed ones, each by one holder at a time.

A holder claims a round by compare-and-swap for a short lease and renews it while it works. If it is killed, the lease
expires, and the next holder, here or on another server, resumes from the round's status. A full disk or an unreachable
store is retried; an invalid update ends the round.
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
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import adapter_files, aggregation, version_publisher
from tunefleet.orchestrator.federation import rounds as round_operations
from tunefleet.orchestrator.federation.aggregation import UpdateAggregationError
from tunefleet.orchestrator.federation.status import TOPIC

log = logging.getLogger(__name__)

LEASE_S: Final = 10.0
# Three renewals per lease: one or two may fail before another server takes over.
RENEW_S: Final = 3.0
# Due rounds are looked for whenever something changes, and this often otherwise: a notification may get lost.
LOOK_S: Final = 30.0
FIRST_PAUSE_S: Final = 2.0
MAX_PAUSE_S: Final = 60.0
# How often a round is tried that fails with an unexpected exception.
MAX_CRASHES: Final = 3
_MAX_CONCURRENT: Final = 2
_WAITING: Final = frozenset({RoundStatus.SAMPLING.value, RoundStatus.COLLECTING.value})


def pause_s(tries: int) -> float:
    """Return the exponential backoff after a number of tries, in seconds."""
    return min(FIRST_PAUSE_S * 2.0 ** min(tries - 1, 16), MAX_PAUSE_S)


class RoundScheduler:
    """Closes and aggregates the rounds of all federations of a server."""

    def __init__(self, core: ServerContext) -> None:
        self._core = core
        self._work: dict[tuple[int, int], asyncio.Task[None]] = {}
        # Bounds the memory and disk load of concurrent aggregations.
        self._turns = asyncio.Semaphore(_MAX_CONCURRENT)
        self._swept = False

    async def run_once(self) -> None:
        """Start due rounds, then wait until another one may be due."""
        signals = self._core.signals
        seen = signals.version(TOPIC)
        if not self._swept:
            await self._sweep()
        await signals.wait(TOPIC, await self.start_due(), seen)

    async def start_due(self) -> float:
        """Close due rounds, and start to aggregate closed ones that have no holder.

        Returns:
            Seconds until the next round is due.
        """
        core = self._core
        now = core.clock.wall()
        found, lacking = await core.read(_due_rounds)
        late = {row.federation_seq for row in found if row.status in _WAITING and _is_due(row, now)}
        for seq in sorted(late | set(lacking)):
            await self._tick(seq, now)
        closed = [row for row in found if row.status not in _WAITING]
        if late or lacking:
            closed = [row for row in (await core.read(_due_rounds))[0] if row.status not in _WAITING]
        for row in closed:
            if rounds.due_at(row) <= now and (row.federation_seq, row.number) not in self._work:
                self._start(row)
        later = [rounds.due_at(row) - now for row in found if rounds.due_at(row) > now]
        return min([LOOK_S, *later])

    async def drain(self) -> None:
        """Wait until all started rounds are finished."""
        while self._work:
            await asyncio.gather(*self._work.values())

    async def close(self) -> None:
        """Stop, and release unfinished rounds to other servers."""
        for task in self._work.values():
            task.cancel()
        await asyncio.gather(*self._work.values(), return_exceptions=True)

    async def _tick(self, seq: int, now: float) -> None:
        try:
            await self._core.write(partial(round_operations.tick, seq=seq, now=now))
        except Exception:
            # One unreadable federation, for example after an upgrade, must not block the others.
            log.exception("Checking federation %d failed; retrying later.", seq)

    def _start(self, row: RoundRow) -> None:
        key = (row.federation_seq, row.number)
        self._work[key] = asyncio.create_task(self._run_round(row), name=f"round {key[1]} of federation {key[0]}")

    async def _run_round(self, row: RoundRow) -> None:
        core, key = self._core, (row.federation_seq, row.number)
        try:
            async with self._turns:
                await self._claim_and_run(row)
        except Exception:
            log.exception("Round %d of federation %d failed unexpectedly; retrying later.", key[1], key[0])
            # Keeps the round in `_work` for a moment, so that a persistent error does not become a busy loop.
            await asyncio.sleep(FIRST_PAUSE_S)
        finally:
            self._work.pop(key, None)
            core.signals.notify(TOPIC)

    async def _claim_and_run(self, row: RoundRow) -> None:
        core, holder = self._core, f"hold-{secrets.token_hex(8)}"
        now = core.clock.wall()
        claim = partial(rounds.claim, row=row, holder=holder, now=now, until=now + LEASE_S)
        claimed = await core.write(claim)
        if claimed is None:
            return
        folder = adapter_files.work_folder(core, holder)
        if row.holder is not None:
            # The previous holder's lease expired: its process may have been killed on this machine, leaving its folder.
            await asyncio.to_thread(shutil.rmtree, adapter_files.work_folder(core, row.holder), ignore_errors=True)
        try:
            async with self._renewing(claimed, holder):
                await self._run_measured(claimed, holder, folder)
        except asyncio.CancelledError:
            # The server shuts down: release the round, so that the next server need not wait for the lease to expire.
            await core.write(partial(rounds.release, row=claimed, holder=holder, until=0.0, error=None))
            raise
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _run_measured(self, row: RoundRow, holder: str, folder: Path) -> None:
        started = self._core.clock.monotonic()
        outcome = await self._try(row, holder, folder)
        if self._core.meters is not None:
            self._core.meters.aggregations.labels(outcome).inc()
            self._core.meters.aggregation_s.labels(outcome).observe(self._core.clock.monotonic() - started)

    async def _try(self, row: RoundRow, holder: str, folder: Path) -> str:
        """Try once, and return the outcome: `made`, `later` or `failed`."""
        try:
            await self._aggregate(row, holder, folder)
        except UpdateAggregationError as blame:
            error = f"Update {blame.update.seq} of {blame.update.worker}: {blame.error.message}"
            await self._end_failed(row, holder, RoundReason.UPDATE_REFUSED, error, blame.update)
        except (InputError, NotFoundError) as refusal:
            await self._end_failed(row, holder, RoundReason.UPDATE_REFUSED, refusal.message)
        except (TunefleetError, OSError) as error:
            await self._retry_later(row, holder, error.message if isinstance(error, TunefleetError) else str(error))
            return "later"
        except Exception as error:
            log.exception("Round %d of federation %d crashed.", row.number, row.federation_seq)
            why = f"Internal server error ({type(error).__name__}); see the server log."
            if row.tries < MAX_CRASHES:
                await self._retry_later(row, holder, why)
                return "later"
            await self._end_failed(row, holder, RoundReason.SERVER_FAULT, why)
        else:
            return "made"
        return "failed"

    async def _aggregate(self, row: RoundRow, holder: str, folder: Path) -> None:
        core = self._core
        work = await core.read(partial(aggregation.load_input, current=row))
        if work is None:
            return
        if row.status == RoundStatus.AGGREGATING:
            result = await aggregation.make(core, work, folder)
            version = await version_publisher.store_and_publish(core, work, result, holder)
        else:
            # Another server has already aggregated this round: publish its stored result instead of averaging again.
            version = await version_publisher.run(core, work, holder)
        if version is not None:
            log.info("%s: version %d published from round %d.", work.federation.id, version.version, row.number)

    async def _end_failed(
        self, row: RoundRow, holder: str, reason: RoundReason, error: str, blamed: UpdateRow | None = None
    ) -> None:
        log.warning("Round %d of federation %d failed: %s", row.number, row.federation_seq, error)
        now = self._core.clock.wall()
        how: dict[str, Any] = {"holder": holder, "reason": reason, "error": error, "blamed": blamed}
        await self._core.write(partial(_fail, claimed=row, now=now, **how))

    async def _retry_later(self, row: RoundRow, holder: str, reason: str) -> None:
        until = self._core.clock.wall() + pause_s(row.tries)
        log.warning("Round %d of federation %d is retried: %s", row.number, row.federation_seq, reason)
        await self._core.write(partial(rounds.release, row=row, holder=holder, until=until, error=reason))

    @contextlib.asynccontextmanager
    async def _renewing(self, row: RoundRow, holder: str) -> AsyncIterator[None]:
        renewal = asyncio.create_task(self._renew(row, holder))
        try:
            yield
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)

    async def _renew(self, row: RoundRow, holder: str) -> None:
        core = self._core
        while True:
            await asyncio.sleep(RENEW_S)
            until = core.clock.wall() + LEASE_S
            try:
                kept = await core.write(partial(rounds.renew, row=row, holder=holder, until=until))
            except TunefleetError as error:
                log.warning(
                    "Cannot renew the lease on round %d of federation %d: %s", row.number, row.federation_seq, error
                )
                continue
            if not kept:
                log.warning("Lost the lease on round %d of federation %d.", row.number, row.federation_seq)
                return

    async def _sweep(self) -> None:
        """Remove work folders that killed servers have left."""
        core = self._core
        holders = await core.read(partial(rounds.held_by, now=core.clock.wall()))
        await asyncio.to_thread(_remove, partial(adapter_files.orphaned_folders, core, holders))
        self._swept = True


def _due_rounds(connection: Connection) -> tuple[list[RoundRow], list[int]]:
    # A shard that is requeued or paused publishes no event, and its round may be waiting for it alone: checked here.
    left = [seq for seq in rounds.of_trainings(connection) if round_operations.has_all_updates(connection, seq)]
    return rounds.to_look_after(connection), rounds.without_round(connection) + left


def _is_due(row: RoundRow, now: float) -> bool:
    return row.status == RoundStatus.SAMPLING or rounds.due_at(row) <= now


def _fail(connection: Connection, *, claimed: RoundRow, now: float, **how: Any) -> None:
    row = federations.by_seq(connection, claimed.federation_seq, lock=True)
    # The round may have been published or abandoned in the meantime.
    current = None if row is None else rounds.get(connection, row.seq, claimed.number)
    if row is not None and current is not None and not RoundStatus(current.status).final:
        round_operations.fail(connection, row, current, now=now, **how)


def _remove(leftovers: Callable[[], list[Path]]) -> None:
    for folder in leftovers():
        shutil.rmtree(folder, ignore_errors=True)
