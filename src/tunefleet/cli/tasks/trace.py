"""`tunefleet trace`: where the time of a run went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.text import Text

from tunefleet.analysis.run_trace import Phase, phases
from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say, status_text, table
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import TaskId, connect, one_task
from tunefleet.client import Client
from tunefleet.schemas.api import EventView

_BAR: Final = 32
_PAGE: Final = 1000
_IDLE: Final = frozenset({"dependencies", "queue", "backoff", "offer", "paused"})


@examples("tunefleet trace task-3f9a", "tunefleet trace task-3f9a --json | jq '.phases[] | [.name, .seconds]'")
def trace(task: TaskId, *, as_json: Json = False) -> None:
    """Show where the time of a run went, phase by phase.

    The phases include retries and pauses, and add up to the wall time since the submission. The time to save is the
    time for which training stood still for checkpoints. The other phases are described in the guide on debugging.
    """
    with connect() as client:
        detail = client.tasks.get(one_task(client, task))
        found = phases(detail, _events(client, detail.id), datetime.now(UTC))
    total_s = sum(phase.seconds for phase in found)
    if as_json:
        lines = [phase.as_json() for phase in found]
        print_json({"task_id": detail.id, "status": detail.status, "wall_s": round(total_s, 3), "phases": lines})
        return
    say(Text.assemble((detail.name, "head"), "  ", (detail.id, "id"), "  ", status_text(detail.status)))
    listing = table(
        "phase", "attempt", "worker", "time", "share", "timeline", "note", right=("attempt", "time", "share")
    )
    for phase in found:
        share = phase.seconds / total_s if total_s else 0.0
        listing.add_row(
            phase.name,
            "" if phase.attempt is None else str(phase.attempt),
            Text(phase.worker_id or "", style="id"),
            formatting.step_time(phase.seconds) if phase.seconds < 1 else formatting.duration(phase.seconds),
            f"{share:.0%}",
            Text(bar(phase, total_s), style="dim" if phase.name in _IDLE else ""),
            phase.note,
        )
    say(listing)
    say(f"Wall time: {formatting.duration(total_s)}{_longest(found)}")


def bar(phase: Phase, total_s: float) -> str:
    """Return a bar at the phase's place on the time axis; at least one character, however short it is."""
    if total_s <= 0:
        return ""
    start = min(round(phase.start_s / total_s * _BAR), _BAR - 1)
    end = max(start + 1, round((phase.start_s + phase.seconds) / total_s * _BAR))
    return f"{' ' * start}{'█' * (end - start)}"


def _longest(found: Sequence[Phase]) -> str:
    times: dict[str, float] = {}
    for phase in found:
        times[phase.name] = times.get(phase.name, 0.0) + phase.seconds
    if not times:
        return "."
    name = max(times, key=lambda each: times[each])
    return f"; most of it: {name} ({formatting.duration(times[name])})."


def _events(client: Client, task_id: str) -> Iterator[EventView]:
    after = 0
    while page := client.events.list(after=after, limit=_PAGE, task_id=task_id):
        yield from page
        after = page[-1].id
