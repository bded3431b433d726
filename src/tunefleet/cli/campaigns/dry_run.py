"""`tunefleet campaign dry-run`: what each campaign of a file would do next, and what was not checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from tunefleet.cli.campaigns.config_file import CONFIG, Config, built_in, read
from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import connect
from tunefleet.errors import AuthError, InputError, UnreachableError
from tunefleet.settings import CampaignSettings, TrackingSettings, load

if TYPE_CHECKING:
    from tunefleet.schemas.campaign import CampaignDetail
    from tunefleet.spec.documents.campaign_data import CampaignDatasetSpec
    from tunefleet.spec.documents.campaign_document import CampaignSpec, RunIntervalsSpec

_LINES = frozenset({".jsonl", ".ndjson"})


@dataclass
class Forecast:
    """What a campaign would do next.

    Args:
        facts: Key → readable value.
    """

    name: str
    next: str
    facts: dict[str, str] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


@examples("tunefleet campaign dry-run", "tunefleet campaign dry-run --config campaigns.yaml --json")
def dry_run(config: Config = CONFIG, *, as_json: Json = False) -> None:
    """Check a campaign file and the settings, and show what each campaign would do next, without starting anything.

    Checks that local data files have the configured columns and that ids of models and datasets are valid on the
    Hub. Works offline, and lists what was not checked.
    """
    specs = read(config, local=True)
    settings = load(CampaignSettings)
    known, why_not = _known()
    found = [
        _forecast(name, spec, settings, config.expanduser().parent, known.get(name), why_not)
        for name, spec in specs.items()
    ]
    if as_json:
        print_json({"campaigns": [asdict(each) for each in found]})
    for each in [] if as_json else found:
        say(Text.assemble((each.name, "head"), f": {each.next}"))
        for key, value in each.facts.items():
            say(f"  {key:<12} {value}")
        for text in each.unchecked:
            say(f"  not checked  {text}", style="dim")
        for text in each.doubts:
            say(f"  warning      {text}", style="warn")
        for text in each.faults:
            say(f"  error        {text}", style="bad")
    wrong = [each.name for each in found if each.faults]
    if wrong:
        raise InputError(
            f"{', '.join(wrong)} cannot run with these settings.", hint="Fix the errors above; nothing was started."
        )


def _known() -> tuple[dict[str, CampaignDetail], str | None]:
    """Return the campaigns of the server, or the reason why they are unknown."""
    try:
        with connect() as client:
            return {each.name: client.campaigns.get(each.id) for each in client.campaigns.list(limit=1000).items}, None
    # Works offline: without a server only the local checks are made.
    except (UnreachableError, AuthError) as error:
        return {}, error.message


def _forecast(
    name: str,
    spec: CampaignSpec,
    settings: CampaignSettings,
    folder: Path,
    known: CampaignDetail | None,
    why_not: str | None,
) -> Forecast:
    from tunefleet.campaign import paid_training_checks, providers, publish_targets
    from tunefleet.campaign.steps.sleep import interval_of
    from tunefleet.client.campaign_files import named_files

    forecast = Forecast(name, _next(spec, known))
    provider, why = providers.chosen(spec, settings)
    providers.find(provider)
    forecast.facts["provider"] = f"{provider} ({why})"
    forecast.facts["publish"] = publish_targets.place(name, spec, settings, provider)
    forecast.faults = [
        f"{message} {hint}" for message, hint in paid_training_checks.faults(name, spec, settings, provider)
    ]
    forecast.doubts = paid_training_checks.doubts(name, spec, settings, provider)
    _trackers(spec, forecast, local=why_not is not None)
    forecast.facts["model"] = (
        spec.model_repo if known is None or known.promoted is None else f"version {known.promoted}"
    )
    files = {key: file for key, file, _ in named_files(spec, folder)}
    rows = {number: file for number in range(len(spec.datasets)) if (file := files.get(f"datasets.{number}.path"))}
    rows |= built_in(spec)
    counts = [_rows(number, each, rows.get(number), forecast) for number, each in enumerate(spec.datasets)]
    _chunks(spec, [count for count in counts if count is not None], known, forecast, complete=None not in counts)
    gap = interval_of(spec, settings)
    forecast.facts["interval"] = _interval(gap)
    forecast.facts["budget"] = ", ".join(_limits(spec)) or "no limit"
    if "model_repo" not in files and not spec.model_repo.startswith("builtin:"):
        forecast.unchecked.append(f"model_repo: {spec.model_repo} is on the Hub and was not downloaded")
    _model(spec, known, forecast)
    if why_not is not None:
        forecast.unchecked.append(f"state on the server: {why_not}")
    return forecast


def _trackers(spec: CampaignSpec, forecast: Forecast, *, local: bool) -> None:
    from tunefleet.integrations.trackers import catalog

    settings = load(TrackingSettings)
    choice = catalog.chosen(spec, settings)
    forecast.facts["tracking"] = f"{' and '.join(choice.names) or 'none'} ({choice.why})"
    if local:
        catalog.refuse_faults([spec], settings)
    else:
        forecast.unchecked.append("tracking: depends on the server's settings")


def _model(spec: CampaignSpec, known: CampaignDetail | None, forecast: Forecast) -> None:
    """Report whether a worker has verified the model, and with which tokenizer."""
    if spec.tokenizer_id is not None:
        forecast.facts["tokenizer"] = spec.tokenizer_id
    steps = [] if known is None else [step for cycle in known.cycle_list for step in cycle.steps]
    for outcome in (step.outcome for step in steps if step.name == "data" and step.outcome is not None):
        verified = outcome.get("model") or {}
        if (verified.get("repo"), verified.get("tokenizer")) == (spec.model_repo, spec.tokenizer_id):
            forecast.facts["verified"] = f"{verified['parameters']:,} parameters, task {verified['task_id']}"
            return
    checks = "files, vocabulary and a forward pass" if spec.model.verify == "forward" else "files and vocabulary"
    forecast.unchecked.append(f"model_repo: a worker checks the {checks} of {spec.model_repo} before the first task")


def _next(spec: CampaignSpec, known: CampaignDetail | None) -> str:
    if not spec.enabled:
        return "nothing (not enabled)"
    if known is None or known.cycle is None:
        return "starts cycle 0"
    cycle = known.cycle
    if known.status != "active":
        return f"{known.status.value} at cycle {cycle.number}, {cycle.step.value}: {known.reason or 'no reason given'}"
    if cycle.status == "running":
        return f"continues cycle {cycle.number} at {cycle.step.value}" + (
            f" ({cycle.waiting})" if cycle.waiting else ""
        )
    at = "" if known.next_at is None else f" at {known.next_at.astimezone():%Y-%m-%d %H:%M}"
    return f"starts cycle {cycle.number + 1}{at}"


def _rows(number: int, dataset: CampaignDatasetSpec, file: Path | None, forecast: Forecast) -> int | None:
    """Return the row count of a dataset; None if that needs a download or conversion."""
    from tunefleet.client.local_data import first_rows

    key = f"datasets.{number}"
    if file is None:
        forecast.unchecked.append(f"{key}: {dataset.place} was not downloaded")
        return None
    if first_rows(file) is None:
        forecast.unchecked.append(f"{key}: a worker checks the columns of {dataset.place}")
    if file.suffix not in _LINES or not file.is_file():
        forecast.unchecked.append(f"{key}: the rows of {dataset.place} were not counted")
        return None
    with file.open("rb") as lines:
        count = sum(1 for line in lines if line.strip())
    return count if dataset.max_rows is None else min(count, dataset.max_rows)


def _chunks(
    spec: CampaignSpec, counts: list[int], known: CampaignDetail | None, forecast: Forecast, *, complete: bool
) -> None:
    from tunefleet.campaign.data_documents import chunk_at

    if not complete or not counts:
        forecast.facts["chunks"] = f"up to {spec.samples_per_training:,} rows each"
        return
    total = sum(counts)
    held_out = round(total * spec.final_test_size)
    position = 0 if known is None or known.cycle is None else known.cycle.position
    chunk = chunk_at(position, rows=max(1, total - held_out), most=spec.samples_per_training, seed=spec.random_seed)
    forecast.facts["rows"] = f"{total:,}, about {held_out:,} for evaluation, before deduplication"
    forecast.facts["chunks"] = (
        f"{chunk.count} with about {chunk.rows:,} rows each; next: chunk {chunk.index + 1} of epoch {chunk.epoch}"
    )


def _interval(gap: RunIntervalsSpec) -> str:
    bounds = ((gap.min_days, gap.max_days, "day"), (gap.min_hours, gap.max_hours, "hour"))
    parts = [
        f"{low:g} to {high:g} {unit}s" if low != high else f"{low:g} {unit}{'' if low == 1 else 's'}"
        for low, high, unit in bounds
        if high
    ]
    return f"{' and '.join(parts)} after each run" if parts else "none: the next run starts immediately"


def _limits(spec: CampaignSpec) -> Iterator[str]:
    for key in ("max_cost", "max_tasks_per_day", "max_failures"):
        value: Any = getattr(spec.budget, key)
        if value is not None:
            yield f"{key} {value:g}"
