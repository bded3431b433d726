"""`tunefleet campaign dry-run`: what each campaign of a file would do next, and what could not be looked at."""

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
class Outlook:
    """What a campaign would do.

    Args:
        facts: What is known of it: key → value, for people.
    """

    name: str
    next: str
    facts: dict[str, str] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


@examples("tunefleet campaign dry-run", "tunefleet campaign dry-run --config campaigns.yaml --json")
def dry_run(config: Config = CONFIG, *, as_json: Json = False) -> None:
    """Check a file of campaigns and the settings, and say what each would do next; nothing is begun.

    Local data files are read for the columns that the file names, and ids of models and datasets are held to the rules
    of the hub. Works offline, and says what it could not look at.
    """
    specs = read(config, here=True)
    settings = load(CampaignSettings)
    known, why_not = _known()
    found = [
        _outlook(name, spec, settings, config.expanduser().parent, known.get(name), why_not)
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
            say(f"  doubtful     {text}", style="warn")
        for text in each.faults:
            say(f"  wrong        {text}", style="bad")
    wrong = [each.name for each in found if each.faults]
    if wrong:
        raise InputError(f"{', '.join(wrong)} cannot run like that.", hint="Mend what is wrong; nothing was begun.")


def _known() -> tuple[dict[str, CampaignDetail], str | None]:
    """Return the campaigns that the server has, and why they are not known if they are not."""
    try:
        with connect() as client:
            return {each.name: client.campaigns.get(each.id) for each in client.campaigns.list(limit=1000).items}, None
    except (UnreachableError, AuthError) as error:
        return {}, error.message


def _outlook(
    name: str,
    spec: CampaignSpec,
    settings: CampaignSettings,
    folder: Path,
    known: CampaignDetail | None,
    why_not: str | None,
) -> Outlook:
    from tunefleet.campaign import paid_training_checks, providers, publish_targets
    from tunefleet.campaign.steps.sleep import interval_of
    from tunefleet.client.campaign_files import named_files

    made = Outlook(name, _next(spec, known))
    provider, why = providers.chosen(spec, settings)
    providers.find(provider)
    made.facts["provider"] = f"{provider} ({why})"
    made.facts["publish"] = publish_targets.place(name, spec, settings, provider)
    made.faults = [f"{message} {hint}" for message, hint in paid_training_checks.faults(name, spec, settings, provider)]
    made.doubts = paid_training_checks.doubts(name, spec, settings, provider)
    _trackers(spec, made, here=why_not is not None)
    made.facts["model"] = spec.model_repo if known is None or known.promoted is None else f"version {known.promoted}"
    files = {key: file for key, file, _ in named_files(spec, folder)}
    rows = {number: file for number in range(len(spec.datasets)) if (file := files.get(f"datasets.{number}.path"))}
    rows |= built_in(spec)
    counts = [_rows(number, each, rows.get(number), made) for number, each in enumerate(spec.datasets)]
    _chunks(spec, [count for count in counts if count is not None], known, made, whole=None not in counts)
    gap = interval_of(spec, settings)
    made.facts["interval"] = _interval(gap)
    made.facts["budget"] = ", ".join(_limits(spec)) or "no limit"
    if "model_repo" not in files and not spec.model_repo.startswith("builtin:"):
        made.unchecked.append(f"model_repo: {spec.model_repo} is on the hub, and not fetched")
    _model(spec, known, made)
    if why_not is not None:
        made.unchecked.append(f"where it stands on the server: {why_not}")
    return made


def _trackers(spec: CampaignSpec, made: Outlook, *, here: bool) -> None:
    from tunefleet.integrations.trackers import catalog

    settings = load(TrackingSettings)
    choice = catalog.chosen(spec, settings)
    made.facts["tracking"] = f"{' and '.join(choice.names) or 'none'} ({choice.why})"
    if here:
        catalog.refuse_faults([spec], settings)
    else:
        made.unchecked.append("tracking: the server's own settings count")


def _model(spec: CampaignSpec, known: CampaignDetail | None, made: Outlook) -> None:
    """Say whether a worker has verified the model, and with which tokenizer."""
    if spec.tokenizer_id is not None:
        made.facts["tokenizer"] = spec.tokenizer_id
    steps = [] if known is None else [step for cycle in known.cycle_list for step in cycle.steps]
    for outcome in (step.outcome for step in steps if step.name == "data" and step.outcome is not None):
        said = outcome.get("model") or {}
        if (said.get("repo"), said.get("tokenizer")) == (spec.model_repo, spec.tokenizer_id):
            made.facts["verified"] = f"{said['parameters']:,} parameters, task {said['task_id']}"
            return
    looked = "files, vocabulary and a forward pass" if spec.model.verify == "forward" else "files and vocabulary"
    made.unchecked.append(f"model_repo: a worker looks at the {looked} of {spec.model_repo} before the first order")


def _next(spec: CampaignSpec, known: CampaignDetail | None) -> str:
    if not spec.enabled:
        return "nothing: it is not enabled"
    if known is None or known.cycle is None:
        return "begins cycle 0"
    cycle = known.cycle
    if known.status != "active":
        return (
            f"{known.status.value} at cycle {cycle.number}, {cycle.step.value}: {known.reason or 'no reason is known'}"
        )
    if cycle.status == "running":
        return f"goes on with cycle {cycle.number} at {cycle.step.value}" + (
            f" ({cycle.waiting})" if cycle.waiting else ""
        )
    at = "" if known.next_at is None else f" at {known.next_at.astimezone():%Y-%m-%d %H:%M}"
    return f"begins cycle {cycle.number + 1}{at}"


def _rows(number: int, dataset: CampaignDatasetSpec, file: Path | None, made: Outlook) -> int | None:
    """Return how many rows a dataset has, where that can be told without fetching or converting it."""
    from tunefleet.client.local_data import first_rows

    key = f"datasets.{number}"
    if file is None:
        made.unchecked.append(f"{key}: {dataset.place} is not fetched")
        return None
    if first_rows(file) is None:
        made.unchecked.append(f"{key}: the columns of {dataset.place} are checked by a worker")
    if file.suffix not in _LINES or not file.is_file():
        made.unchecked.append(f"{key}: the rows of {dataset.place} are not counted")
        return None
    with file.open("rb") as lines:
        count = sum(1 for line in lines if line.strip())
    return count if dataset.max_rows is None else min(count, dataset.max_rows)


def _chunks(spec: CampaignSpec, counts: list[int], known: CampaignDetail | None, made: Outlook, *, whole: bool) -> None:
    from tunefleet.campaign.position import chunk_at

    if not whole or not counts:
        made.facts["chunks"] = f"of {spec.samples_per_training:,} rows at most"
        return
    total = sum(counts)
    held_out = round(total * spec.final_test_size)
    position = 0 if known is None or known.cycle is None else known.cycle.position
    chunk = chunk_at(position, rows=max(1, total - held_out), most=spec.samples_per_training, seed=spec.random_seed)
    made.facts["rows"] = f"{total:,}, of which about {held_out:,} are held out, before duplicates are left out"
    made.facts["chunks"] = (
        f"{chunk.count} of about {chunk.rows:,} rows; number {chunk.index + 1} of epoch {chunk.epoch} is next"
    )


def _interval(gap: RunIntervalsSpec) -> str:
    bounds = ((gap.min_days, gap.max_days, "day"), (gap.min_hours, gap.max_hours, "hour"))
    parts = [
        f"{low:g} to {high:g} {unit}s" if low != high else f"{low:g} {unit}{'' if low == 1 else 's'}"
        for low, high, unit in bounds
        if high
    ]
    return f"{' and '.join(parts)} after each run" if parts else "none: the next run follows at once"


def _limits(spec: CampaignSpec) -> Iterator[str]:
    for key in ("max_cost", "max_tasks_per_day", "max_failures"):
        value: Any = getattr(spec.budget, key)
        if value is not None:
            yield f"{key} {value:g}"
