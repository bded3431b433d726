"""The model card of a published model: what it is, and its lineage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tunefleet.schemas.api import ArtifactView, TaskDetail

CARD: Final = "README.md"
_METRICS: Final = ("held_out_before", "held_out_after", "held_out_best", "train_first", "train_last")
_STEPS: Final = 20


def write_card(
    folder: Path, task: TaskDetail, product: ArtifactView, chain: Iterable[TaskDetail], datasets: Mapping[str, str]
) -> bool:
    """Write a card into a folder, unless the model has one of its own.

    Args:
        datasets: Datasets of the chain → digest, where known.
    """
    path = folder / CARD
    if path.exists() and not _is_plain(path):
        return False
    path.write_text(card(task, product, list(chain), datasets), encoding="utf-8")
    return True


def _is_plain(path: Path) -> bool:
    """Return whether it is the empty card template that PEFT writes with every adapter."""
    return "[More Information Needed]" in path.read_text(encoding="utf-8", errors="replace")


def card(task: TaskDetail, product: ArtifactView, chain: list[TaskDetail], datasets: Mapping[str, str]) -> str:
    """Return a model card; see `write_card`."""
    adapter = product.kind == "adapter"
    base = base_of(task, chain)
    head: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["tunefleet", *(["lora"] if adapter else [])],
    }
    if base is not None and is_name_of_the_hub(base):
        head["base_model"] = base
    what = "A LoRA adapter" if adapter else "A GGUF file" if product.kind == "gguf" else "A model"
    lines = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {task.name}",
        f"{what} trained with Tunefleet" + (f" from `{base}`." if base else "."),
        "## Lineage",
        table(
            ("", ""),
            [
                ("base", f"`{base}`" if base else "unknown"),
                ("artifact", f"`{product.name}`, sha256 `{product.digest}`"),
                *((f"data `{name}`", f"sha256 `{digest}`") for name, digest in sorted(datasets.items())),
                *((f"run `{each.id}`", f"{each.kind} *{each.name}*") for each in (task, *chain[:_STEPS])),
            ],
        ),
    ]
    figures = [row for each in (task, *chain[:_STEPS]) for row in _figures(each)]
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


def _figures(task: TaskDetail) -> list[tuple[str, str, str]]:
    result = (task.result or {}).get("result") or {}
    losses = result.get("losses") or {}
    found = [(name, losses[name]) for name in _METRICS if isinstance(losses.get(name), int | float)]
    proof = result.get("verification") or {}
    found += [(f"merge: {name}", proof[name]) for name in ("relative_error", "tolerance") if name in proof]
    metrics = result.get("metrics") or {}
    found += [(name, value) for name, value in metrics.items() if isinstance(value, int | float)]
    return [(f"`{task.id}`", name.replace("_", " "), f"{value:.5g}") for name, value in found]


def is_name_of_the_hub(model: str) -> bool:
    """Return whether a model name is a Hub id, not a folder or a built-in model."""
    return "/" in model and not model.startswith(("/", ".", "~", "builtin:"))


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows as a Markdown table."""
    listed = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in listed)
