"""Translates `config.training` to `spec.training`: method, duration, learning rate, optimizer, precision, pairs."""

from __future__ import annotations

from typing import Any, Final

from tunefleet.agent.translate.config_reader import ConfigReader, Defaults

# Names of the preference format: the columns `prompt`, `chosen` and `rejected`.
FORMATS: Final = frozenset({"dpo", "orpo", "preference", "preferences", "pairs", "chosen_rejected"})
OF_DPO: Final = ("training.loss_type", "training.label_smoothing", "training.precompute_ref_log_probs")
OF_PAIRS: Final = ("training.beta", "training.max_prompt_length")
_COLUMNS: Final = ("prompt", "chosen", "rejected")
CHOSEN: Final = ("data.chosen_column", "data.chosen_field", "data.rejected_column", "data.rejected_field")
_OF_OTHERS: Final = ("data.text_field", "data.text_column", "data.response_column", "data.messages_field")
# Key -> the value that has no effect, and so needs no warning.
_SUPERVISED_ONLY: Final[tuple[tuple[str, Any], ...]] = (
    ("training.packing", False),
    ("training.neftune_noise_alpha", False),
    ("training.use_liger_kernel", False),
    ("training.completion_only_loss", True),
    ("training.early_stopping_patience", False),
)
_DIRECT: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("max_steps", ("training.max_steps",)),
    ("eval_batch_size", ("training.per_device_eval_batch_size", "training.eval_batch_size")),
    ("gradient_accumulation_steps", ("training.gradient_accumulation_steps",)),
    ("lr_scheduler_type", ("training.lr_scheduler_type", "training.lr_scheduler")),
    ("weight_decay", ("training.weight_decay",)),
    ("max_grad_norm", ("training.max_grad_norm",)),
    ("gradient_checkpointing", ("training.gradient_checkpointing",)),
    ("save_total_limit", ("training.save_total_limit",)),
    ("load_best_model_at_end", ("training.load_best_model_at_end",)),
    ("dataloader_num_workers", ("training.dataloader_num_workers",)),
    ("seed", ("seed", "training.seed")),
)
_SUPERVISED: Final = (
    ("packing", "training.packing"),
    ("neftune_noise_alpha", "training.neftune_noise_alpha"),
    ("liger", "training.use_liger_kernel"),
    ("completion_only_loss", "training.completion_only_loss"),
)
_OPTIMIZERS: Final = {
    "adamw": "adamw_torch",
    "adamw_hf": "adamw_torch",
    "adamw_bnb_8bit": "adamw_8bit",
    "paged_adamw": "paged_adamw_32bit",
}
_NEED_CUDA: Final = frozenset({"adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"})
_OF_OTHER_METHODS: Final = (
    *OF_PAIRS, *OF_DPO, "training.ppo_epochs", "training.ppo_clip_range", "training.ppo_value_coef",
    "training.ppo_entropy_coef",
)  # fmt: skip
_MEASURED: Final = ("loss", "perplexity")
_MEASURED_OF_PAIRS: Final = ("loss", "accuracy", "margin")
_WITHOUT_EFFECT: Final = (
    "training.pretokenize", "training.group_by_length", "training.dataloader_pin_memory",
    "training.dataloader_prefetch_factor", "training.dataloader_persistent_workers", "training.dataloader_drop_last",
)  # fmt: skip
# Methods with preference pairs; their task types have the same names.
PAIRS: Final = frozenset({"dpo", "orpo"})
_SUPERVISED_METHODS: Final = frozenset({"sft", "cpt"})
_NEEDS_REWARD_MODEL: Final = "needs a reward model, which a config cannot set"
_NEEDS_REWARDS: Final = "needs rewards or a reward model, which a config cannot set"
# Method -> why a config does not support it, and the task types that do.
_UNSUPPORTED: Final = {
    "rlhf": (_NEEDS_REWARD_MODEL, "ppo or grpo"),
    "ppo": (_NEEDS_REWARD_MODEL, "ppo"),
    "grpo": (_NEEDS_REWARDS, "grpo"),
    "rloo": (_NEEDS_REWARDS, "rloo"),
    "kto": ("needs a label column for single answers, which a config cannot set", "kto"),
    "reward": ("trains a reward model, which a config does not support", "reward"),
}


def training(read: ConfigReader, defaults: Defaults, *, method: str, lora: bool, quantized: bool) -> None:
    """Translate the training block."""
    for name, spellings in _DIRECT:
        read.move(f"training.{name}", *spellings)
    if method in PAIRS:
        _pair_training(read, method)
    else:
        _supervised(read)
    epochs = ("training.num_train_epochs", "training.num_epochs", "training.epochs")
    read.move("training.num_train_epochs", *epochs, default=3)
    batch = ("training.per_device_train_batch_size", "training.batch_size")
    read.move("training.batch_size", *batch, default=4)
    rate = None if method in PAIRS else 2e-4 if lora else 2e-5  # pairs: the spec's far lower default
    read.move("training.learning_rate", "training.learning_rate", default=rate)
    length = ("data.max_seq_length", "training.max_length", "training.max_seq_length", "training.max_seq_len")
    read.move("training.max_seq_length", *length, default=512)
    logging_steps = read.take("training.logging_steps")
    read.put("training.logging_steps", logging_steps or defaults.logging_steps, "training.logging_steps")
    _warmup(read)
    _saving(read, defaults)
    _evaluation(read, _MEASURED_OF_PAIRS if method in PAIRS else _MEASURED)
    _optimizer(read, defaults)
    _precision(read, defaults, quantized=quantized)
    read.ignore(*_OF_OTHER_METHODS, why="belongs to another training method and has no effect")
    read.ignore(*_WITHOUT_EFFECT)


def _supervised(read: ConfigReader) -> None:
    for name, path in _SUPERVISED:
        read.move(f"training.{name}", path)
    _early_stopping(read)


def _warmup(read: ConfigReader) -> None:
    ratio, steps = read.look("training.warmup_ratio"), read.look("training.warmup_steps")
    if ratio and steps == 0:
        # Some clients send both; the one that is 0 is ignored.
        read.take("training.warmup_steps")
    elif steps is not None and ratio == 0:
        read.take("training.warmup_ratio")
        read.move("training.warmup_steps", "training.warmup_steps")
        return
    else:
        read.move("training.warmup_steps", "training.warmup_steps", default=None if ratio is not None else 500)
    read.move("training.warmup_ratio", "training.warmup_ratio")


def _saving(read: ConfigReader, defaults: Defaults) -> None:
    read.move("training.save_strategy", "training.save_strategy")
    read.move("training.save_steps", "training.save_steps", default=defaults.save_steps)


def _evaluation(read: ConfigReader, measured: tuple[str, ...]) -> None:
    steps = read.take("training.eval_steps", "evaluation.eval_steps")
    strategy, path = read.taken("training.eval_strategy", "training.evaluation_strategy")
    if strategy is None:
        strategy = "steps" if steps else "no"
    read.put("training.eval_strategy", strategy, path)
    if steps and strategy == "steps":
        read.put("training.eval_steps", steps, "training.eval_steps")
    elif steps and strategy == "epoch":
        read.warnings.append("config.training.eval_steps has no effect: evaluations run at the end of each epoch.")
    if strategy == "no" and read.spec.get("training", {}).get("load_best_model_at_end"):
        read.spec["training"].pop("load_best_model_at_end")
        read.warn("training.load_best_model_at_end", "has no effect without evaluations")
    metrics = read.take("evaluation.metrics")
    names = metrics if isinstance(metrics, list) else [metrics] if metrics else []
    if {str(name).removeprefix("eval_") for name in names} - set(measured):
        supported = f"{', '.join(measured[:-1])} and {measured[-1]}"
        read.warnings.append(f"config.evaluation.metrics: only {supported} are supported.")
    best = read.take("training.metric_for_best_model")
    if best not in (None, "loss", "eval_loss"):
        read.fault("training.metric_for_best_model", f"is {best!r}, but only eval_loss is supported", "use eval_loss")
    read.ignore("training.greater_is_better", why="has no effect: the lowest eval_loss is the best")


def _early_stopping(read: ConfigReader) -> None:
    patience = read.take("training.early_stopping_patience")
    threshold = read.take("training.early_stopping_threshold")
    if patience:
        block: dict[str, Any] = {"patience": patience}
        read.put("training.early_stopping", block, "training.early_stopping_patience")
        if threshold is not None:
            read.put("training.early_stopping.threshold", threshold, "training.early_stopping_threshold")


def _optimizer(read: ConfigReader, defaults: Defaults) -> None:
    name, path = read.taken("training.optim", "training.optimizer")
    if name is None:
        return
    name = _OPTIMIZERS.get(str(name), name)
    if str(name) in _NEED_CUDA and not defaults.gpu:
        read.warn(path, f"{name!r} needs an NVIDIA GPU, which this machine does not have: adamw_torch is used")
        name = "adamw_torch"
    read.put("training.optim", name, path)


def _precision(read: ConfigReader, defaults: Defaults, *, quantized: bool) -> None:
    requested = {"bf16": read.take("training.bf16"), "fp16": read.take("training.fp16")}
    if not defaults.mixed_precision:
        _warn_unused(read, requested, "has no effect: TUNEFLEET_MIXED_PRECISION is off on this machine")
        requested = {"bf16": False, "fp16": False}
        if not quantized:
            read.put("model.transformers.dtype", "float32")
    elif requested["bf16"] and requested["fp16"]:
        read.fault("training.fp16", "cannot be set together with training.bf16", "remove one of them")
    elif not defaults.gpu:
        _warn_unused(read, requested, "has no effect without a GPU: float32 is used")
        requested = {}
    elif not defaults.bf16:
        requested = _half(read, requested)
    for name, value in requested.items():
        if value is not None:
            read.put(f"training.{name}", value, f"training.{name}")


def _half(read: ConfigReader, requested: dict[str, Any]) -> dict[str, Any]:
    """Return the precision settings for a GPU without bfloat16."""
    if requested["bf16"]:
        read.warn("training.bf16", "is not supported by this GPU: fp16 is used")
    if requested["fp16"] is None and requested["bf16"] is not False:
        return {"bf16": None, "fp16": True}
    return {"bf16": None, "fp16": requested["fp16"]}


def _warn_unused(read: ConfigReader, requested: dict[str, Any], why: str) -> None:
    for name, wish in requested.items():
        if wish:
            read.warn(f"training.{name}", why)


def method_of(read: ConfigReader) -> str:
    """Return the method, `sft` by default; an unsupported one is recorded as an error."""
    name = str(read.take("training.method", "method") or "sft").lower()
    if name in _UNSUPPORTED:
        why, kinds = _UNSUPPORTED[name]
        hint = f"submit a task of kind {kinds} to a server with a worker, see docs/how-to/preference-tuning.md"
        read.fault("training.method", f"{name!r} {why}", hint)
    elif name not in _SUPERVISED_METHODS | PAIRS:
        read.fault("training.method", f"{name!r:.40} is not known", "use sft, cpt, dpo or orpo")
    return name


def kind_of(method: str, *, lora: bool) -> str:
    """Return the task type of a method; preference methods have the same kind with and without an adapter."""
    if method in PAIRS:
        return method
    return "lora_sft" if lora else "sft"


def _pair_training(read: ConfigReader, method: str) -> None:
    """Translate the keys of the method, and warn about those that only apply to supervised training."""
    for path in (*OF_PAIRS, *(OF_DPO if method == "dpo" else ())):
        read.move(path, path)
    for path, harmless in _SUPERVISED_ONLY:
        if read.take(path) not in (None, harmless):
            read.warn(path, f"has no effect with the method {method}")
    read.take("training.early_stopping_threshold")


def pair_columns(read: ConfigReader, method: str, form: Any, file_formats: frozenset[str]) -> None:
    """Translate the columns."""
    for name in _COLUMNS:
        read.move(f"data.{name}_column", f"data.{name}_column", f"data.{name}_field")
    read.move("data.separator", "data.separator")
    if form is not None and str(form).lower() not in FORMATS | file_formats:
        read.warnings.append(
            f"config.data.dataset_format {form!r} is not a preference format: {method} reads the columns prompt, "
            "chosen and rejected, or those set in data.prompt_column, chosen_column and rejected_column."
        )
    read.ignore(*_OF_OTHERS, why="belongs to another training method and has no effect")
