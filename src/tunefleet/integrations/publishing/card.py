"""Model cards: of a published model with its lineage, and of a promoted campaign model with its evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tunefleet.schemas.api import ArtifactView, TaskDetail

CARD: Final = "README.md"
_METRICS: Final = ("held_out_before", "held_out_after", "held_out_best", "train_first", "train_last")
_STEPS: Final = 20


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a card says of a published artifact.

    Args:
        title: Heading of the card.
        kind: `adapter`, `model` or `gguf`.
        base: Base model; `None` if unknown.
        artifact: Its name within its task.
        method: What was trained, such as `LoRA, rank 8`.
        data: Dataset → digest, where known.
        runs: Runs that led to it, nearest first: id → description.
        figures: Measured values: run, metric, value.
    """

    title: str
    kind: str
    base: str | None
    artifact: str
    digest: str
    method: str | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[str, str] = field(default_factory=dict)
    figures: Iterable[tuple[str, str, str]] = ()


def lineage_of(
    task: TaskDetail, product: ArtifactView, chain: Iterable[TaskDetail], datasets: Mapping[str, str]
) -> Lineage:
    """Return the lineage of a task's artifact.

    Args:
        chain: The tasks that led to it, nearest first.
        datasets: Datasets of the chain → digest, where known.
    """
    before = list(chain)
    shown = (task, *before[:_STEPS])
    return Lineage(
        title=task.name,
        kind=product.kind,
        base=base_of(task, before),
        artifact=product.name,
        digest=product.digest,
        data=datasets,
        runs={each.id: f"{each.kind} *{each.name}*" for each in shown},
        figures=[row for each in shown for row in figures_of(each.id, (each.result or {}).get("result") or {})],
    )


def write_card(folder: Path, lineage: Lineage) -> bool:
    """Write a card into a folder, unless the model has one of its own; return whether it was written."""
    path = folder / CARD
    if path.exists() and not _is_plain(path):
        return False
    path.write_text(card(lineage), encoding="utf-8")
    return True


def _is_plain(path: Path) -> bool:
    """Return whether it is the empty card template that PEFT writes with every adapter."""
    return "[More Information Needed]" in path.read_text(encoding="utf-8", errors="replace")


def card(lineage: Lineage) -> str:
    """Return a model card."""
    adapter, base = lineage.kind == "adapter", lineage.base
    head: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["tunefleet", *(["lora"] if adapter else [])],
    }
    if base is not None and is_name_of_the_hub(base):
        head["base_model"] = base
    what = "A LoRA adapter" if adapter else "A GGUF file" if lineage.kind == "gguf" else "A model"
    lines = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {lineage.title}",
        f"{what} trained with Tunefleet" + (f" from `{base}`." if base else "."),
        "## Lineage",
        table(
            ("", ""),
            [
                ("base", f"`{base}`" if base else "unknown"),
                ("artifact", f"`{lineage.artifact}`, sha256 `{lineage.digest}`"),
                *([("method", lineage.method)] if lineage.method else []),
                *((f"data `{name}`", f"sha256 `{digest}`") for name, digest in sorted(lineage.data.items())),
                *((f"run `{each}`", about) for each, about in lineage.runs.items()),
            ],
        ),
    ]
    figures = [(f"`{run}`", metric, value) for run, metric, value in lineage.figures]
    if figures:
        lines += ["## Results", table(("task", "metric", "value"), figures)]
    return "\n\n".join(lines) + "\n"


def base_of(task: TaskDetail, chain: Iterable[TaskDetail]) -> str | None:
    """Return the base model of the complete chain."""
    for each in reversed([task, *chain]):
        source = (each.spec.get("model") or {}).get("source") or {}
        if isinstance(source.get("identifier"), str):
            return str(source["identifier"])
    return None


def figures_of(run: str, result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return what a run has measured, from its result: run, metric, value."""
    losses = result.get("losses") or {}
    found = [(name, losses[name]) for name in _METRICS if isinstance(losses.get(name), int | float)]
    proof = result.get("verification") or {}
    found += [(f"merge: {name}", proof[name]) for name in ("relative_error", "tolerance") if name in proof]
    metrics = result.get("metrics") or {}
    found += [(name, value) for name, value in metrics.items() if isinstance(value, int | float)]
    return [(run, name.replace("_", " "), f"{value:.5g}") for name, value in found]


def is_name_of_the_hub(model: str) -> bool:
    """Return whether a model name is a Hub id, not a folder or a built-in model."""
    return "/" in model and not model.startswith(("/", ".", "~", "builtin:"))


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows as a Markdown table."""
    listed = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in listed)


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


def write_campaign_card(folder: Path, story: Story) -> None:
    """Write the card into the folder to publish; a merged model has none of its own."""
    (folder / CARD).write_text(_campaign_card(story), encoding="utf-8")


def _campaign_card(story: Story) -> str:
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
