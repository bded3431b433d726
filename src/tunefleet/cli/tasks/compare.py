"""`tunefleet compare`: evaluations or training runs side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tunefleet.analysis.evaluation.comparison import Difference, Items, Row
from tunefleet.analysis.evaluation.comparison import compare as compare_results
from tunefleet.cli.console import Json, print_json, say, table
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import complete_task, connect, one_task
from tunefleet.cli.tasks import results
from tunefleet.client import Client
from tunefleet.errors import InputError, NotFoundError
from tunefleet.schemas.api import TaskDetail
from tunefleet.spec.tasks.evaluate_task import ITEMS_FOLDER

_STYLES = {"better": "green", "worse": "red", "none": "dim"}
_WORDS = {"better": "better", "worse": "worse", "none": "no significant difference"}


@examples("tunefleet compare task-3f9a task-81c2", "tunefleet compare task-3f9a task-81c2 --json | jq .metrics")
def compare(
    tasks: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…", help="Runs to compare; the first is the baseline.", autocompletion=complete_task
        ),
    ],
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Compare even if the evaluations used different settings.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare evaluations and the significance of their differences, or training runs and their settings."""
    with connect() as client, tempfile.TemporaryDirectory(prefix="tunefleet-compare-") as folder:
        details = [client.tasks.get(one_task(client, task)) for task in dict.fromkeys(tasks)]
        if all(results.is_training(detail) for detail in details):
            _report_training(details, as_json=as_json)
            return
        for detail in details:
            _require_completed(detail)
        found = {detail.id: results.executor_result(detail) for detail in details}
        rows = compare_results(found, _items(client, Path(folder)), force=force)
    if as_json:
        print_json({"tasks": list(found), "metrics": [row.as_json() for row in rows]})
        return
    _print(details, found, rows)


def _require_completed(detail: TaskDetail) -> None:
    if detail.status != "completed":
        raise InputError(
            f"{detail.id} is {detail.status} and has no metrics.", hint=f"See `tunefleet show {detail.id}`."
        )


def _report_training(details: list[TaskDetail], *, as_json: bool) -> None:
    """Print what training runs reached, and the settings in which they differ."""
    settings = differing_settings([detail.resolved or detail.spec for detail in details])
    if as_json:
        measured = {detail.id: results.executor_result(detail) for detail in details}
        print_json({"tasks": [detail.id for detail in details], "settings": settings, "results": measured})
        return
    made = table("", *(Text(f"{detail.name}\n{detail.id}") for detail in details))
    summaries = [dict(results.summary_rows(detail)) for detail in details]
    made.add_row("status", *(detail.status for detail in details))
    for name in dict.fromkeys(name for summary in summaries for name in summary):
        if any(summary.get(name) is not None for summary in summaries):
            made.add_row(name, *(summary.get(name) or Text("–", style="dim") for summary in summaries))
    for key, values in settings.items():
        made.add_row(key, *(Text("–", style="dim") if value is None else Text(str(value)) for value in values))
    say(made)
    if not settings and len(details) > 1:
        say("The settings are the same.", style="dim")


def differing_settings(specs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the keys whose values differ, with the value of each spec; None where a spec lacks the key."""
    flat = [_flat(spec) for spec in specs]
    keys = dict.fromkeys(key for each in flat for key in each)
    found = {key: [each.get(key) for each in flat] for key in keys}
    return {key: values for key, values in found.items() if any(value != values[0] for value in values)}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _items(client: Client, folder: Path) -> Items:
    fetched: dict[str, Path | None] = {}

    def find(task_id: str, file: str) -> Path | None:
        # Fetched on demand and once: only some metrics need the per-item results.
        if task_id not in fetched:
            try:
                where = client.tasks.fetch_output(task_id, ITEMS_FOLDER, folder / task_id)
            except NotFoundError:
                fetched[task_id] = None  # removed by `prune` or `rm`: compared without per-item results
            else:
                fetched[task_id] = where
        root = fetched[task_id]
        return None if root is None else root / Path(file).name

    return find


def _print(details: list[TaskDetail], found: dict[str, dict[str, Any]], rows: list[Row]) -> None:
    made = table("metric", *(Text(detail.id) for detail in details), "difference")
    for row in rows:
        arrow = "↑" if row.higher_is_better else "↓"
        cells = [_value(value) for value in row.values]
        made.add_row(f"{row.metric} {arrow}", *cells, _differences(row))
    say(made)
    for detail in details:
        result = found[detail.id]
        weights = result.get("checkpoint") or ", ".join(result.get("adapters") or ()) or None
        say(
            f"{detail.id}: {result.get('model_name')}{f' with {weights}' if weights else ''} ({detail.name})",
            style="dim",
        )
    if not all(row.comparable for row in rows):
        say("The evaluations used different settings (--force), so significance is not computed.", style="dim")


def _value(metric: dict[str, Any] | None) -> Text:
    if metric is None:
        return Text("–", style="dim")
    text = Text(_number(metric["value"]))
    if metric["low"] is not None:
        text.append(f" [{_number(metric['low'])}, {_number(metric['high'])}]", style="dim")
    return text


def _differences(row: Row) -> Text:
    parts = [_difference(each) for each in row.differences[1:] if each is not None]
    return Text("\n").join(parts)


def _difference(each: Difference) -> Text:
    shape = "×{:.4g}" if each.factor else "{:+.4g}"
    text = Text(shape.format(each.value))
    if each.low is not None and each.high is not None:
        text.append(f" [{shape.format(each.low)}, {shape.format(each.high)}]")
    if each.p is not None:
        text.append(f" p={each.p:.3g}")
    if each.low is not None or each.p is not None:
        text.append(f" {_WORDS[each.verdict]}", style=_STYLES[each.verdict])
    return text


def _number(value: float) -> str:
    return f"{value:.4g}"
