"""What a user asks first about a task: method, model, data, eval loss before and after, duration, tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tunefleet.cli import formatting
from tunefleet.cli.tasks.results import Row, executor_result
from tunefleet.cli.tasks.task_commands import progress_text, run_time
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import ArtifactView, CheckpointView, TaskDetail

# Kind of an artifact with one record for each evaluated row.
_PER_ROW: Final = "report"
_LONGEST_ACRONYM: Final = len("grpo")


def is_training(task: TaskDetail) -> bool:
    """Whether a task trains a model: only such tasks have a `training` block."""
    return isinstance(task.spec.get("training"), dict)


def rows(task: TaskDetail, checkpoints: Sequence[CheckpointView] = ()) -> list[Row]:
    """Return the facts of a task that come first on its screen."""
    result = executor_result(task)
    progress = task.progress if not TaskStatus(task.status).final else None
    found: list[Row] = [
        ("method" if is_training(task) else "kind", _method(task, result)),
        ("model", at(task.spec, "model", "source", "identifier")),
        ("data", _data(task, result)),
        ("pending reason", task.why),
        ("stalled since", f"{task.stalled_since:%Y-%m-%d %H:%M:%S} UTC" if task.stalled_since else None),
        ("worker", task.worker_id if not TaskStatus(task.status).final else None),
        ("progress", f"{progress.phase} {progress_text(task)}".strip() if progress else None),
        ("step time", formatting.step_time(progress.step_time_s) if progress and progress.step_time_s else None),
        ("time left", formatting.duration(progress.eta_s) if progress and progress.eta_s else None),
        *_measured(result),
        ("duration", _duration(task, result)),
        ("steps", _steps(result)),
        ("tokens", _tokens(result)),
    ]
    return [*found, ("best checkpoint", _best(checkpoints)), ("peak memory", _peak(result))]


def at(tree: object, *keys: str) -> str | None:
    """Return a nested value as text; None if there is none."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return str(tree) if tree is not None else None


def predictions(task: TaskDetail, artifacts: Sequence[ArtifactView]) -> str | None:
    """Return where the predictions of a task are; None if it made none."""
    answers = _block(executor_result(task), "held_out").get("answers")
    found = []
    if isinstance(answers, list) and answers:
        count = formatting.plural(len(answers), "eval answer")
        found.append(f"{count} before and after: tunefleet show {task.id} --all")
    if task.spec.get("predictions") is not None:
        found.append(f"during training: GET /api/training/predictions/{task.id}, and the run's page")
    found += [f"per row, in the artifact {each.name}" for each in artifacts if each.kind == _PER_ROW]
    return "\n".join(found) or None


def _method(task: TaskDetail, result: Mapping[str, Any]) -> str:
    if not is_training(task):
        return task.kind
    name = task.kind.removeprefix("lora_").replace("_", " ")
    name = name.upper() if len(name) <= _LONGEST_ACRONYM else name.capitalize()
    rank = at(task.spec, "lora", "r")
    tuned = "LoRA" + (f" r {rank}" if rank else "") if task.spec.get("lora") is not None else None
    quantized = at(dict(result), "used", "quantization")
    full = "full fine-tune" if task.kind == "sft" else None
    return ", ".join(part for part in (name, tuned or full, quantized) if part)


def _data(task: TaskDetail, result: Mapping[str, Any]) -> str | None:
    data = _block(result, "data")
    named = (at(task.spec, "data", key) for key in ("path", "artifact", "dataset_name"))
    name = data.get("dataset") or next(filter(None, named), None)
    if name is None:
        return None
    counts = [
        f"{count:,} {what}" for what, key in (("rows", "rows"), ("eval rows", "held_out_rows"))
        if isinstance(count := data.get(key), int) and count
    ]  # fmt: skip
    return f"{name}{': ' if counts else ''}{', '.join(counts)}"


def _measured(result: Mapping[str, Any]) -> list[Row]:
    """Return losses and shares before and after training."""
    losses, held_out = _block(result, "losses"), _block(result, "held_out")
    early, late = losses.get("held_out_before"), losses.get("held_out_after")
    found: list[Row] = [("eval loss", change(early, late))]
    if late is None:
        found = [("train loss", change(losses.get("train_first"), losses.get("train_last")))]
    before, after = _block(held_out, "before"), _block(held_out, "after")
    found += [
        (f"eval {name}", change(before.get(name), value, share=name == "accuracy"))
        for name, value in after.items()
        if name != "loss"
    ]
    match = _block(held_out, "exact_match")
    if match:
        shares = change(match.get("before"), match.get("after"), share=True)
        found.append(("exact match", f"{shares} on {formatting.plural(match.get('rows', 0), 'row')}"))
    return found


def change(before: object, after: object, *, share: bool = False) -> str | None:
    """Return a value before and after, such as `5.2641 → 0.08623 (−98.4%)`; a share as percentages."""
    if not isinstance(after, int | float):
        return None
    spelt = (lambda value: f"{100 * value:.1f}%".replace(".0%", "%")) if share else formatting.number
    if not isinstance(before, int | float):
        return spelt(after)
    if before == after:
        return f"{spelt(before)}, unchanged"
    moved = f"  ({100 * (after - before) / abs(before):+.1f}%)".replace("-", "−") if before and not share else ""
    return f"{spelt(before)} → {spelt(after)}{moved}"


def _duration(task: TaskDetail, result: Mapping[str, Any]) -> str | None:
    time = run_time(task)
    if not time:
        return None
    trained = result.get("training_time_seconds")
    notes = [f"training {formatting.duration(trained)}"] if isinstance(trained, int | float) and trained else []
    notes += [f"{task.attempts} attempts"] if task.attempts > 1 else []
    return f"{time} ({', '.join(notes)})" if notes else time


def _steps(result: Mapping[str, Any]) -> str | None:
    steps, epochs = result.get("steps"), result.get("epochs")
    if not isinstance(steps, int):
        return None
    parts = [f"{formatting.number(epochs)} epochs"] if isinstance(epochs, int | float) else []
    step_time = _block(result, "throughput").get("step_time_s")
    parts += [f"{formatting.step_time(step_time)} each"] if isinstance(step_time, int | float) else []
    return f"{steps:,}" + (f" ({', '.join(parts)})" if parts else "")


def _tokens(result: Mapping[str, Any]) -> str | None:
    seen, rate = _block(result, "tokens").get("seen"), _block(result, "throughput").get("tokens_per_s")
    if not isinstance(seen, int) or not seen:
        return None
    return f"{seen:,}" + (f" ({round(rate):,} tokens/s)" if isinstance(rate, int | float) else "")


def _best(checkpoints: Sequence[CheckpointView]) -> str | None:
    best = next((each for each in reversed(checkpoints) if each.best), None)
    if best is None:
        return None
    loss = f", eval loss {formatting.number(best.eval_loss)}" if best.eval_loss is not None else ""
    return f"{best.name}{loss}"


def _peak(result: Mapping[str, Any]) -> str | None:
    memory = _block(result, "memory")
    peak, device = memory.get("peak_bytes"), memory.get("device")
    if not isinstance(peak, int):
        return None
    return formatting.size(peak) + (f" on {str(device).upper() if device == 'cpu' else device}" if device else "")


def _block(tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = tree.get(key)
    return found if isinstance(found, dict) else {}
