"""Campaigns, their cycles and models as tables, field lists and log lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import cut, facts, plain, table
from tunefleet.lifecycle.cycle import NEEDS_YOU, CampaignStatus, CycleStatus, Stage
from tunefleet.schemas.campaign import (
    ActivityView,
    CampaignDetail,
    CampaignLine,
    CampaignView,
    CycleView,
    LineageView,
    ModelVersionView,
    TrackingView,
)

_STYLES: Final = {
    CampaignStatus.ACTIVE: "busy", CampaignStatus.PAUSED: "warn", CampaignStatus.HELD: "bad",
    CampaignStatus.STOPPED: "dim",
}  # fmt: skip
_CYCLE_STYLES: Final = {
    CycleStatus.RUNNING: "busy", CycleStatus.COMPLETED: "good", CycleStatus.FAILED: "bad",
    CycleStatus.ABANDONED: "warn",
}  # fmt: skip
_STAGE_STYLES: Final = {Stage.CANDIDATE: "warn", Stage.PROMOTED: "good", Stage.ARCHIVED: "dim"}
_FIRST: Final = ("digest", "ticket", "rows")
_DIGEST_DIGITS: Final = 12
_MAX_FACTS: Final = 8


def campaign_table(found: Sequence[CampaignView]) -> Table:
    """Build the table of campaigns."""
    made = table(
        "name", "status", "cycle", "activity", "model", "spent", "base", right=("cycle", "spent"), wide="activity"
    )  # fmt: skip
    for each in found:
        made.add_row(
            Text(each.name, style="id"),
            Text(each.status.value, style=_STYLES[each.status]),
            "–" if each.cycle is None else str(each.cycle.number),
            cut(doing(each)),
            "–" if each.promoted is None else f"version {each.promoted}",
            formatting.number(each.spent) if each.spent else "–",
            each.base_model,
        )
    return made


def doing(found: CampaignView, *, now: datetime | None = None) -> str:
    """Return the current activity of a campaign, or why it is inactive."""
    if found.status is not CampaignStatus.ACTIVE:
        return found.reason or ""
    cycle = found.cycle
    if cycle is not None and cycle.status is CycleStatus.RUNNING:
        return _cycle_does(cycle, now)
    if found.next_at is not None and (left := _left(found.next_at, now)) is not None:
        return f"waiting; next cycle in {left}"
    return "starting the next cycle"


def _cycle_does(cycle: CycleView, now: datetime | None) -> str:
    left = None if cycle.retry_at is None else _left(cycle.retry_at, now)
    again = "" if left is None else f"; retry in {left}"
    if cycle.error is not None:
        failed = f"{cycle.step.value} failed {formatting.plural(cycle.tries, 'time')}{again}"
        return f"{cycle.error} ({failed})" if cycle.error.startswith(NEEDS_YOU) else f"{failed}: {cycle.error}"
    parts = ", ".join(text for text in (cycle.waiting, cycle.activity and activity_text(cycle.activity)) if text)
    checked = f"; next check in {left}" if cycle.waiting and left is not None else ""
    return f"{cycle.step.value}: {parts}{checked}" if parts else cycle.step.value


def activity_text(found: ActivityView) -> str:
    """Return the progress of a step, such as `shuffling 1,000 of 2,000 rows`."""
    if found.what == "waiting" and found.of is not None:
        return f"waiting for a worker: {found.of} is queued"
    return f"{found.what} {amount_text(found)}".rstrip()


def amount_text(found: ActivityView) -> str:
    """Return the completed amount; empty if nothing is counted."""
    if found.unit is None:
        return ""
    if found.unit == "bytes":
        return formatting.size(found.done) + (f" of {formatting.size(found.total)}" if found.total else "")
    return f"{found.done:,}" + (f" of {found.total:,}" if found.total else "") + f" {found.unit}"


def _left(moment: datetime, now: datetime | None) -> str | None:
    seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    return formatting.duration(seconds) if seconds > 0 else None


def detail(found: CampaignDetail) -> Iterator[RenderableType]:
    """Yield the parts of a campaign's screen."""
    yield Text.assemble((found.name, "head"), "  ", (found.id, "id"), "  ", (found.status.value, _STYLES[found.status]))
    budget: Mapping[str, Any] = found.spec.get("budget") or {}
    most = budget.get("max_cost")
    yield facts(
        [
            ("reason", found.reason),
            ("activity", doing(found) if found.status is CampaignStatus.ACTIVE else None),
            ("provider", found.provider),
            ("base model", found.base_model),
            ("promoted", None if found.promoted is None else f"version {found.promoted}"),
            ("spent", f"{found.spent:g}{f' of {most:g}' if most is not None else ''}"),
            ("failures", f"{found.failures} cycles in a row" if found.failures else None),
            ("owner", found.owner),
            ("created", f"{formatting.age(found.created_at)} ago"),
        ]
    )
    if found.cycle_list:
        yield ""
        yield cycle_table(found.cycle_list, looks=found.status is CampaignStatus.ACTIVE)
    tracked = [(f"cycle {each.number}", _tracked(tracking)) for each in found.cycle_list for tracking in each.tracking]
    if tracked:
        yield ""
        yield Text("tracking", style="head")
        yield facts(tracked)


def _tracked(found: TrackingView) -> str:
    if found.told_at is not None:
        return f"{found.tracker}: {plain(found.place or '')}"
    if found.error is None:
        return f"{found.tracker}: sending"
    return f"{found.tracker}: not sent after {formatting.plural(found.tries, 'attempt')}: {plain(found.error)}"


def cycle_table(found: Sequence[CycleView], *, looks: bool = True) -> Table:
    """Build the table of cycles."""
    made = table(
        "cycle", "chunk", "status", "step", "model", "cost", "opened", "duration", "reason",
        right=("cycle", "chunk", "cost"), wide="reason",
    )  # fmt: skip
    for each in found:
        took = None if each.finished_at is None else (each.finished_at - each.opened_at).total_seconds()
        made.add_row(
            str(each.number),
            str(each.position),
            Text(each.status.value, style=_CYCLE_STYLES[each.status]),
            each.step.value,
            "–" if each.version is None else f"version {each.version}",
            formatting.number(each.cost) if each.cost else "–",
            f"{formatting.age(each.opened_at)} ago",
            formatting.duration(took),
            cut(each.error or (each.waiting if looks else None) or ""),
        )
    return made


def lineage(found: Sequence[LineageView]) -> Iterator[RenderableType]:
    """Yield the lineage of each cycle's model."""
    for number, each in enumerate(found):
        if number:
            yield ""
        made = Text.assemble((f"cycle {each.cycle}", "head"), "  ", (each.status.value, _CYCLE_STYLES[each.status]))
        if each.version is not None and each.stage is not None:
            made.append_text(Text.assemble(f"  version {each.version} ", (each.stage.value, _STAGE_STYLES[each.stage])))
        yield made
        yield facts(_links(each))


def _links(found: LineageView) -> Iterator[tuple[str, str | None]]:
    yield "chunk", _brief(found.chunk)
    yield "task", _brief(found.task)
    chosen = found.chosen or {}
    candidate = chosen.get("candidate")
    is_model = candidate is not None and candidate.get("form") == "model"
    yield "model" if is_model else "adapter", _brief(candidate)
    measured = chosen.get("evaluation")
    yield "evaluation", None if measured is None else _brief({**measured, "loss": chosen.get("loss")})
    yield "merged", _brief(found.merged)
    yield "gate", _brief(found.gate)
    yield "published", _brief(found.published)


def _brief(outcome: Mapping[str, Any] | None) -> str | None:
    """Return the outcome of a step in one line: its plain values."""
    if outcome is None:
        return None
    # The data step also reports the evaluation rows; the model was trained on its chunk.
    chunk = outcome.get("chunk")
    known = {**chunk, **outcome} if isinstance(chunk, Mapping) else dict(outcome)
    # Identifying values first, because the line is truncated.
    known = {**{name: known[name] for name in _FIRST if name in known}, **known}
    parts = [f"{name.replace('_', ' ')} {_value(value)}" for name, value in known.items() if _is_plain(value)]
    return ", ".join(parts[:_MAX_FACTS]) or "–"


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and value != ""


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return formatting.number(value)
    text = str(value)
    is_digest = len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)
    return text[:_DIGEST_DIGITS] if is_digest else text


def log_line(line: CampaignLine) -> str:
    """Format a log line."""
    at = line.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    where = "" if line.cycle is None else f" [cycle {line.cycle}{f', {line.step.value}' if line.step else ''}]"
    return f"{at} - {line.campaign} - {line.level.upper()}{where} {plain(line.text)}"


def model_table(found: Sequence[ModelVersionView]) -> Table:
    """Build the table of model versions."""
    made = table(
        "model",
        "version",
        "stage",
        "form",
        "cycle",
        "created",
        "promoted",
        "reason",
        right=("version", "cycle"),
        wide="reason",
    )
    for each in found:
        made.add_row(
            Text(each.name, style="id"),
            str(each.version),
            Text(each.stage.value, style=_STAGE_STYLES[each.stage]),
            each.form,
            str(each.cycle),
            f"{formatting.age(each.created_at)} ago",
            "–" if each.promoted_at is None else f"{formatting.age(each.promoted_at)} ago",
            cut(each.reason or ""),
        )
    return made


def model_detail(found: ModelVersionView) -> Iterator[RenderableType]:
    """Yield the parts of a version's screen."""
    yield Text.assemble(
        (found.name, "head"), f"  version {found.version}  ", (found.stage.value, _STAGE_STYLES[found.stage])
    )
    yield facts(
        [
            ("reason", found.reason),
            ("form", found.form),
            ("location", _brief(found.location)),
            ("campaign", found.campaign_id),
            ("cycle", str(found.cycle)),
            *((f"{name}", _of(value)) for name, value in found.lineage.items()),
            ("owner", found.owner),
            ("created", f"{formatting.age(found.created_at)} ago"),
            ("promoted", None if found.promoted_at is None else f"{formatting.age(found.promoted_at)} ago"),
        ]
    )
    measured = [(name, _of(value)) for name, value in found.evaluation.items()]
    if measured:
        yield ""
        yield Text("evaluation", style="head")
        yield facts(measured)


def _of(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return _brief(value)
    if isinstance(value, list):
        return "; ".join(_of(each) or "–" for each in value)
    return _value(value) if _is_plain(value) else None


def promoted(found: ModelVersionView, what: str) -> str:
    """Return the confirmation of a promotion, and what it does not change."""
    return (
        f"Version {found.version} of {found.name} is {what}. The campaign's publish target still has the version "
        "that the last cycle published."
    )
