"""Fair share of projects at the start of a scheduling cycle: decayed usage and remaining quotas."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tunefleet.db import Connection, after_commit
from tunefleet.db.access import project_rows, usage
from tunefleet.db.access.project_rows import ProjectRow, RunningRow
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.context import ServerContext
from tunefleet.placement import CPU_ONLY_SHARE, QUANTUM_S, DecayedUsage, Share

# Usage older than this number of half-lives is ignored: less than 0.4 % of it is left.
_HALF_LIVES: Final = 8.0


@dataclass(slots=True)
class Ledger:
    """Decayed usage of projects, read incrementally from the store; not thread-safe."""

    half_life_s: float
    _decayed: DecayedUsage = field(init=False)
    _read_to: int = 0

    def __post_init__(self) -> None:
        self._decayed = DecayedUsage(self.half_life_s)

    def catch_up(self, connection: Connection, now: float) -> DecayedUsage:
        """Return the usage, including what has ended since the last call."""
        since, read_to, found = now - _HALF_LIVES * self.half_life_s, self._read_to, self._decayed.copy()
        for seq, project, at, share_s in usage.shares_after(connection, read_to, since):
            read_to = max(read_to, seq)
            found.add(project, share_s, at)
        # After the commit only: an operation may be rolled back and run again, and would then count its rows twice.
        after_commit(connection, partial(self._remember, found, read_to))
        return found

    def _remember(self, usage: DecayedUsage, read_to: int) -> None:
        self._decayed, self._read_to = usage, read_to


def project_shares(
    connection: Connection, ledger: Ledger, waiting: Collection[str], now: float
) -> dict[str, Share] | None:
    """Return the shares of the projects with queued tasks; None for a single project without quotas.

    A project with no places left gets nothing.
    """
    rows = {row.name: row for row in project_rows.all_rows(connection) if row.name in waiting}
    if len(waiting) < 2 and not any(row.limited for row in rows.values()):
        return None
    # Locked before counting: a start in another transaction would exceed `max_running`.
    project_rows.lock(connection, [name for name, row in rows.items() if row.limited])
    running = project_rows.running(connection, now, list(waiting))
    ended = ledger.catch_up(connection, now)
    return {name: _share(connection, ended, name, rows.get(name), running.get(name), now) for name in waiting}


def _share(
    connection: Connection,
    ended: DecayedUsage,
    name: str,
    row: ProjectRow | None,
    running: RunningRow | None,
    now: float,
) -> Share:
    used_s = _used_s(ended, name, running, now)
    if row is None:
        return Share(used_s=used_s)  # a project without a row: its tasks were submitted with a key of an older version
    remaining = None
    if row.max_running is not None:
        remaining = max(0, row.max_running - (running.tasks if running is not None else 0))
    if row.archived_at is not None:
        remaining = 0
    spent = quotas.gpu_hours(connection, name, running, now) if row.gpu_hours is not None else 0.0
    return Share(row.weight, used_s, remaining, gpus=row.gpu_hours is None or spent < row.gpu_hours)


def _used_s(ended: DecayedUsage, project: str, running: RunningRow | None, now: float) -> float:
    """Return a project's usage, including its running tasks."""
    used_s = ended.used_s(project, now)
    if running is None:
        return used_s
    begun_s = running.gpu_s + CPU_ONLY_SHARE * running.bare_s
    return used_s + begun_s + QUANTUM_S * (running.gpus + CPU_ONLY_SHARE * running.bare)


def within(shares: Mapping[str, Share] | None, project: str) -> bool:
    """Whether a project may run one more task; if so, it is counted."""
    share = None if shares is None else shares.get(project)
    if share is None or share.remaining is None:
        return True
    share.remaining -= 1
    return share.remaining >= 0


async def catch_up(core: ServerContext) -> None:
    """Read newly ended usage, so that a scheduling cycle has little to read."""
    now = core.clock.wall()
    # In the writer thread like the scheduling cycle: the ledger is not thread-safe.
    await core.write(lambda connection: core.state(Ledger).catch_up(connection, now))
