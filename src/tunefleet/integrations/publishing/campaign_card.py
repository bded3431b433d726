"""The model card of a promoted campaign model: its origin and its evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tunefleet.integrations.publishing.card import CARD, is_name_of_the_hub, table


@dataclass(frozen=True, slots=True)
class Story:
    """Content of a card.

    Args:
        figures: Model → metric → result of `evaluate`.
        verdict: Decision of the gate: `reason`, and `against`: model → gain with its interval.
    """

    name: str
    base: str
    lineage: Mapping[str, str]
    figures: Mapping[str, Mapping[str, Mapping[str, Any]]]
    verdict: Mapping[str, Any]


def write_card(folder: Path, story: Story) -> None:
    """Write the card into the folder to publish; a merged model has none of its own."""
    (folder / CARD).write_text(card(story), encoding="utf-8")


def card(story: Story) -> str:
    """Return a model card."""
    head: dict[str, Any] = {
        "library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["tunefleet"],
    }  # fmt: skip
    if is_name_of_the_hub(story.base):
        head["base_model"] = story.base
    gains = [
        (f"the {name}", _number(each["value"]), _range(each["low"], each["high"]))
        for name, each in story.verdict["against"].items()
    ]
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {story.name}",
        f"Trained by a Tunefleet campaign on `{story.base}`, one chunk of the data at a time.",
        "## Lineage",
        table(("", ""), list(story.lineage.items())),
        "## Evaluation",
        table(("model", "metric", "value", "interval"), _rows(story)),
        story.verdict["reason"],
        table(("better than", "by", "interval"), gains),
    ]
    return "\n\n".join(parts) + "\n"


def _rows(story: Story) -> list[tuple[str, ...]]:
    return [
        (model, metric.replace("_", " "), _number(each["value"]), _range(each.get("low"), each.get("high")))
        for model, metrics in story.figures.items()
        for metric, each in metrics.items()
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.4g} to {high:.4g}"
