"""A task's result as rows of names and values, and the summary of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import facts
from tunefleet.cli.tasks.task_commands import progress_text, run_time
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import ArtifactView, CheckpointView, TaskDetail

Row = tuple[str, RenderableType | None]
_ROWS: Final = 24
_LINES: Final = 8
_LINE_CHARACTERS: Final = 160
_LIST_CHARACTERS: Final = 80
# Redundant on the screen: a result implies `ok`, and the task and its shards are listed above it.
_SHOWN_ELSEWHERE: Final = frozenset({"ok", "task_id", "shards"})
# For maintainers; `--all` shows them.
_INTERNAL: Final = frozenset(
    {"fingerprint", "evaluations", "versions", "model_name", "output_dir", "timings", "modelfile"}
)
# Kind of an artifact with one record for each evaluated row.
_PER_ROW: Final = "report"
_LONGEST_ACRONYM: Final = len("grpo")


def executor_result(task: TaskDetail) -> dict[str, Any]:
    """Return the executor's result without the server's envelope; empty without a result."""
    envelope = task.result or {}
    inner = envelope.get("result")
    return inner if isinstance(inner, dict) else envelope


def rows(task: TaskDetail, *, whole: bool = False) -> list[Row]:
    """Return the readable part of a task's result; `--json` has all of it.

    Args:
        whole: Whether to include paths, digests, versions and everything beyond the first rows.
    """
    # An echo task returns its own spec.
    hidden = _SHOWN_ELSEWHERE | ({"echo", "count"} if task.kind == "echo" else set())
    if not whole:
        hidden |= _INTERNAL
    found = _flat({name: value for name, value in executor_result(task).items() if name not in hidden})
    more = 0 if whole else len(found) - _ROWS
    return found if more <= 0 else [*found[:_ROWS], ("…", Text(f"and {more} more (--all shows them)"))]


def answers(task: TaskDetail) -> list[RenderableType]:
    """Return the answers of a model to eval prompts, before and after its training."""
    held_out = executor_result(task).get("held_out")
    listed = held_out.get("answers") if isinstance(held_out, dict) else None
    found: list[RenderableType] = []
    for each in listed or ():
        named = [(name, _line(value)) for name, value in each.items() if value is not None]
        found += [Text(), Text("Answer", style="head"), facts(named)]
    return found


def _flat(tree: dict[str, Any], prefix: str = "") -> list[Row]:
    found: list[Row] = []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value.keys() >= {"value", "low", "high"}:
            found.append((name, _measure(value)))
        elif isinstance(value, dict):
            found += _flat(value, f"{name}.")
        elif isinstance(value, list):
            found.append((name, _listed(value)))
        elif isinstance(value, bool):
            found.append((name, "yes" if value else "no"))
        elif not isinstance(value, (int, float)):
            found.append((name, None if value is None else Text(str(value))))
        else:
            found.append((name, formatting.number(value)))
    return found


def _measure(values: Mapping[str, Any]) -> Text:
    """Return a metric of an evaluation with its confidence interval."""
    found = formatting.number(values["value"]) if values["value"] is not None else "unknown"
    if values["low"] is not None and values["high"] is not None:
        found += f"  ({formatting.number(values['low'])} – {formatting.number(values['high'])})"
    return Text(f"{found}  n {values['n']:,}" if values.get("n") else found)


def _listed(values: Sequence[Any]) -> Text:
    outputs = [each["output"] for each in values if isinstance(each, dict) and "output" in each]
    entries = outputs if len(outputs) == len(values) else [_entry(each) for each in values if isinstance(each, dict)]
    readable = entries is outputs or all(0 < len(entry) <= _LINE_CHARACTERS for entry in entries)
    if entries and len(entries) == len(values) and readable:
        lines = [_line(entry) for entry in entries[:_LINES]]
        more = len(entries) - len(lines)
        return Text("\n".join([*lines, f"… and {more} more"] if more else lines))
    plain = ", ".join(str(value) for value in values if not isinstance(value, (dict, list)))
    if not any(isinstance(value, (dict, list)) for value in values) and len(plain) <= _LIST_CHARACTERS:
        return Text(plain)
    return Text("1 entry" if len(values) == 1 else f"{len(values)} entries")


def _entry(values: Mapping[str, Any]) -> str:
    """Return an entry as one line: its name, then names and values; empty if all its values are nested."""
    parts = []
    for position, (name, value) in enumerate(values.items()):
        if isinstance(value, str) and position == 0:
            parts.append(value)
        elif isinstance(value, bool):
            parts.append(f"{name} {'yes' if value else 'no'}")
        elif isinstance(value, (int, float)):
            parts.append(f"{name} {formatting.number(value)}")
        elif isinstance(value, str) and value:
            parts.append(f"{name} {value}")
    return " · ".join(parts)


def _line(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _LINE_CHARACTERS else f"{text[:_LINE_CHARACTERS]}…"


def is_training(task: TaskDetail) -> bool:
    """Whether a task trains a model: only such tasks have a `training` block."""
    return isinstance(task.spec.get("training"), dict)


def summary_rows(task: TaskDetail, checkpoints: Sequence[CheckpointView] = ()) -> list[Row]:
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
