"""Which blocks of a task must fit together; each is right in itself, and together they contradict or lack something."""

from __future__ import annotations

from typing import Any, Final

from tunefleet.spec.adapter import QuantizationSpec
from tunefleet.spec.data import TrainingData
from tunefleet.spec.model import ModelSpec
from tunefleet.spec.policy import CheckpointSpec, EvaluateSpec, OutputSpec, PredictionsSpec
from tunefleet.spec.processes import process_faults
from tunefleet.spec.resources import ResourcesSpec
from tunefleet.spec.training import TrainingSpec

Faults = list[tuple[str, str, str | None]]
"""Path below the spec, message, hint."""

ALWAYS_DELIVERED: Final = ("responses.json", "logs")
"""What every task leaves: its result and its log."""


def training_faults(blocks: dict[str, Any], *, whole: bool) -> Faults:
    """Find faults between the blocks of a training.

    Args:
        blocks: As `tasks.across` takes them.
        whole: Whether all weights are trained.
    """
    return [
        *_held_out_faults(blocks),
        *_streaming_faults(blocks),
        *_checkpoint_faults(blocks),
        *_loading_faults(blocks, whole=whole),
        *process_faults(blocks),
    ]


def output_faults(trained: str | None, blocks: dict[str, Any]) -> Faults:
    """Find names in `output.artifacts` that the task does not leave.

    Args:
        trained: The folder that the task kind leaves, if it trains.
        blocks: As `tasks.across` takes them.
    """
    output: OutputSpec | None = blocks.get("output")
    training: TrainingSpec | None = blocks.get("training")
    made = [trained, f"{trained}.tar.gz"] if trained else []
    known = [*ALWAYS_DELIVERED, *made]
    faults: Faults = []
    for index, name in enumerate(output.artifacts if output is not None else ()):
        where = f"output.artifacts.{index}"
        if name not in known:
            faults.append((where, f"{name!r} is not left by this task kind", f"it leaves {', '.join(known)}"))
        elif name in made and training is not None and not training.save_model:
            faults.append((where, f"{name!r} is not left with training.save_model: false", "leave one of them out"))
    return faults


def _held_out_faults(blocks: dict[str, Any]) -> Faults:
    training: TrainingSpec | None = blocks.get("training")
    data: TrainingData | None = blocks.get("data")
    evaluate: EvaluateSpec | None = blocks.get("evaluate")
    hint = "add data.eval with a split, a path or a fraction"
    faults: Faults = []
    if data is not None and data.eval is None:
        if training is not None and training.eval_strategy != "no":
            faults.append(("training.eval_strategy", "needs held-out rows", hint))
        if evaluate is not None and evaluate.answers:
            faults.append(("evaluate.answers", "needs held-out rows", hint))
    predictions: PredictionsSpec | None = blocks.get("predictions")
    if predictions is not None and predictions.enabled and data is not None and training is not None:
        faults += _prediction_faults(predictions, data, training, hint)
    if data is not None and training is not None and training.completion_only_loss and data.shape.kind == "text":
        faults.append(
            (
                "training.completion_only_loss",
                "needs rows with a response, and these are plain text",
                "name prompt_column and response_column, or messages_field",
            )
        )
    return faults


def _prediction_faults(predictions: PredictionsSpec, data: TrainingData, training: TrainingSpec, hint: str) -> Faults:
    if data.eval is None:
        return [("predictions", "needs held-out rows", hint)]
    if predictions.sample_frequency == "epoch":
        where = "predictions.sample_frequency"
        return [(where, "a stream has no epochs", "write eval or a number")] if data.streaming else []
    if training.eval_strategy == "no":
        more = "add training.eval_strategy: steps or epoch, or write sample_frequency: epoch"
        return [("predictions", "needs evaluations during the training", more)]
    return []


def _checkpoint_faults(blocks: dict[str, Any]) -> Faults:
    checkpoint: CheckpointSpec | None = blocks.get("checkpoint")
    resources: ResourcesSpec | None = blocks.get("resources")
    if checkpoint is None or resources is None or not checkpoint.asynchronous or resources.processes == 1:
        return []
    return [("checkpoint.asynchronous", "is for a training of one process", "leave it out, or resources.processes")]


def _streaming_faults(blocks: dict[str, Any]) -> Faults:
    training: TrainingSpec | None = blocks.get("training")
    data: TrainingData | None = blocks.get("data")
    if training is None or data is None or not data.streaming:
        return []
    leave = "leave it out, or leave data.streaming out"
    # A stream has no length: no epochs, and no share of it.
    checks = (
        (training.max_steps is None, "training.max_steps", "is needed with data.streaming", "say how many steps"),
        (training.save_strategy == "epoch", "training.save_strategy", "a stream has no epochs", "write steps"),
        (training.eval_strategy == "epoch", "training.eval_strategy", "a stream has no epochs", "write steps"),
        (training.dataloader_num_workers > 1, "training.dataloader_num_workers", "a stream has one reader", "write 1"),
        (training.dataset_num_proc is not None, "training.dataset_num_proc", "has no effect with streaming", leave),
    )
    return [(at, message, hint) for failed, at, message, hint in checks if failed]


def _loading_faults(blocks: dict[str, Any], *, whole: bool) -> Faults:
    model: ModelSpec | None = blocks.get("model")
    training: TrainingSpec | None = blocks.get("training")
    quantization: QuantizationSpec | None = blocks.get("quantization")
    if model is None:
        return []
    loading = model.transformers
    faults: Faults = []
    asked = "flash_attention_2" if loading.use_flash_attention_2 else loading.attn_implementation
    if asked and training is not None and training.attn_implementation not in {None, asked}:
        faults.append(("training.attn_implementation", "contradicts model.transformers", "leave one of them out"))
    for name in ("load_in_4bit", "load_in_8bit"):
        if not getattr(loading, name):
            continue
        if whole:
            hint = "use `taskType: lora_sft`, which trains an adapter on the quantised model"
            faults.append((f"model.transformers.{name}", "quantised weights cannot be trained whole", hint))
        elif quantization is not None and _other_width(quantization, name):
            faults.append((f"model.transformers.{name}", "contradicts quantization", "leave one of them out"))
    return faults


def _other_width(quantization: QuantizationSpec, name: str) -> bool:
    return quantization.load_in_8bit if name == "load_in_4bit" else quantization.load_in_4bit
