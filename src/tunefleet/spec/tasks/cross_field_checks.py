"""Checks across blocks of a task that are each valid but contradict each other or lack something together."""

from __future__ import annotations

from typing import Any

from tunefleet.spec.options.checkpoint_storage import CheckpointSpec
from tunefleet.spec.options.data import TrainingData
from tunefleet.spec.options.model import ModelSpec, QuantizationSpec
from tunefleet.spec.options.output import OutputSpec
from tunefleet.spec.options.policy import EvaluateSpec, PredictionsSpec
from tunefleet.spec.options.training_options import CommonTrainingSpec, TrainingSpec, deepspeed_faults
from tunefleet.validation_errors import show

# Path below the spec, message, hint.
Faults = list[tuple[str, str, str | None]]


def training_faults(blocks: dict[str, Any]) -> Faults:
    """Find errors across the blocks of a supervised fine-tune.

    Args:
        blocks: As passed to `faults` of a task type.
    """
    return [*_eval_faults(blocks), *_streaming_faults(blocks)]


def model_faults(blocks: dict[str, Any], *, whole: bool) -> Faults:
    """Find errors between the model and the training options.

    Args:
        blocks: As passed to `faults` of a task type.
        whole: Whether all weights are trained (full fine-tune).
    """
    return [*_loading_faults(blocks, whole=whole), *_start_faults(blocks), *deepspeed_faults(blocks)]


def output_faults(left: tuple[str, ...], blocks: dict[str, Any]) -> Faults:
    """Find names in `output.artifacts` that other keys of the task rule out.

    Args:
        left: Outputs of the task type; any other name may be a file that the task writes.
        blocks: As passed to `faults` of a task type.
    """
    output: OutputSpec | None = blocks.get("output")
    saves = getattr(blocks.get("training"), "save_model", True)
    uploads = getattr(blocks.get("checkpoint"), "upload", True)
    faults: Faults = []
    for index, name in enumerate(output.artifacts if output is not None else ()):
        where = f"output.artifacts.{index}"
        # May be a file that the task itself writes, so it cannot be checked here.
        if name not in left:
            continue
        if name.startswith("final_") and not saves:
            faults.append((where, f"{show(name)} is not written with training.save_model: false", "remove one of them"))
        elif name.endswith("checkpoints") and not uploads:
            faults.append((where, f"{show(name)} is not delivered with checkpoint.upload: false", "remove one of them"))
    return faults


def _eval_faults(blocks: dict[str, Any]) -> Faults:
    training: TrainingSpec | None = blocks.get("training")
    data: TrainingData | None = blocks.get("data")
    evaluate: EvaluateSpec | None = blocks.get("evaluate")
    hint = "add data.eval with a split, a path or a fraction"
    faults: Faults = []
    if data is not None and data.eval is None:
        if training is not None and training.eval_strategy != "no":
            faults.append(("training.eval_strategy", "requires an eval set", hint))
        if evaluate is not None and evaluate.questions:
            named = "answers" if evaluate.answers else "exact_match"
            faults.append((f"evaluate.{named}", "requires an eval set", hint))
    predictions: PredictionsSpec | None = blocks.get("predictions")
    if predictions is not None and predictions.enabled and data is not None and training is not None:
        faults += _prediction_faults(predictions, data, training, hint)
    if data is not None and training is not None and training.completion_only_loss and data.shape.kind == "text":
        faults.append(
            (
                "training.completion_only_loss",
                "needs rows with a response, but these are plain text",
                "name prompt_column and response_column, or messages_field",
            )
        )
    return faults


def _prediction_faults(predictions: PredictionsSpec, data: TrainingData, training: TrainingSpec, hint: str) -> Faults:
    if data.eval is None:
        return [("predictions", "requires an eval set", hint)]
    if predictions.sample_frequency == "epoch":
        where = "predictions.sample_frequency"
        return [(where, "epochs are not supported with streaming", "use eval or a number")] if data.streaming else []
    if training.eval_strategy == "no":
        hint = "add training.eval_strategy: steps or epoch, or set sample_frequency: epoch"
        return [("predictions", "requires evaluations during training", hint)]
    return []


def _start_faults(blocks: dict[str, Any]) -> Faults:
    training: CommonTrainingSpec | None = blocks.get("training")
    checkpoint: CheckpointSpec | None = blocks.get("checkpoint")
    if training is None or checkpoint is None or training.resume_from_path is None or checkpoint.load is None:
        return []
    return [("training.resume_from_path", "cannot be combined with checkpoint.load", "remove one of them")]


def _streaming_faults(blocks: dict[str, Any]) -> Faults:
    training: TrainingSpec | None = blocks.get("training")
    data: TrainingData | None = blocks.get("data")
    if training is None or data is None or not data.streaming:
        return []
    leave = "remove it, or remove data.streaming"
    # The length of a stream is unknown, so there are no epochs.
    checks = (
        (
            training.max_steps is None,
            "training.max_steps",
            "is required with data.streaming",
            "set the number of steps",
        ),
        (
            training.save_strategy == "epoch",
            "training.save_strategy",
            "epochs are not supported with streaming",
            "use steps",
        ),
        (
            training.eval_strategy == "epoch",
            "training.eval_strategy",
            "epochs are not supported with streaming",
            "use steps",
        ),
        (
            training.dataloader_num_workers > 1,
            "training.dataloader_num_workers",
            "streaming supports one reader only",
            "write 1",
        ),
        (training.dataset_num_proc is not None, "training.dataset_num_proc", "has no effect with streaming", leave),
    )
    return [(at, message, hint) for failed, at, message, hint in checks if failed]


def _loading_faults(blocks: dict[str, Any], *, whole: bool) -> Faults:
    model: ModelSpec | None = blocks.get("model")
    training: CommonTrainingSpec | None = blocks.get("training")
    quantization: QuantizationSpec | None = blocks.get("quantization")
    if model is None:
        return []
    loading = model.transformers
    faults: Faults = _precision_faults(model, training)
    asked = "flash_attention_2" if loading.use_flash_attention_2 else loading.attn_implementation
    if asked and training is not None and training.attn_implementation not in {None, asked}:
        faults.append(("training.attn_implementation", "contradicts model.transformers", "remove one of them"))
    for name in ("load_in_4bit", "load_in_8bit"):
        if not getattr(loading, name):
            continue
        # Quantized weights have no gradients; only an adapter on top of them can be trained.
        if whole:
            hint = (
                "train an adapter on the quantized model: `taskType: lora_sft`, or a `lora` block in other task types"
            )
            faults.append((f"model.transformers.{name}", "quantized weights cannot be fully fine-tuned", hint))
        elif quantization is not None and _has_other_width(quantization, name):
            faults.append((f"model.transformers.{name}", "contradicts quantization", "remove one of them"))
    return faults


def _has_other_width(quantization: QuantizationSpec, name: str) -> bool:
    return quantization.load_in_8bit if name == "load_in_4bit" else quantization.load_in_4bit


def _precision_faults(model: ModelSpec, training: CommonTrainingSpec | None) -> Faults:
    if training is None:
        return []
    faults: Faults = []
    for name in ("bf16", "fp16"):
        named, asked = getattr(model.config, name), getattr(training, name)
        if None not in (named, asked) and named != asked:
            faults.append((f"model.config.{name}", f"contradicts training.{name}", "remove one of them"))
    half = {name: getattr(training, name) or getattr(model.config, name) for name in ("bf16", "fp16")}
    if half["bf16"] and half["fp16"] and not (training.bf16 and training.fp16):
        faults.append(("model.config", "fp16 cannot be set together with bf16", "remove one of them"))
    return faults
