"""`spec.trainer`: the training library, and the keys that each one supports.

Keys that a trainer does not support are rejected by name when a workflow is validated; none is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from tunefleet.spec.base import Text, wrong

Faults = list[tuple[str, str, str | None]]
# The default trainer, which supports every key.
OURS: Final = "trl"
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
# `package.module:function`.
_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

# Keys that all trainers support; an attribute of the spec includes all keys below it.
_COMMON_KEYS: Final = frozenset(
    {
        "trainer", "task_type", "resources", "output", "retry", "priority", "slo_s", "limits", "on_lost", "notify",
        "on_stall", "on_oom", "data", "model.source", "checkpoint.upload", "training.num_train_epochs",
        "training.max_steps", "training.batch_size", "training.eval_batch_size",
        "training.gradient_accumulation_steps", "training.learning_rate", "training.lr_scheduler_type",
        "training.warmup_steps", "training.warmup_ratio", "training.weight_decay", "training.max_grad_norm",
        "training.optim", "training.seed", "training.max_seq_length", "training.gradient_checkpointing",
        "training.bf16", "training.fp16", "training.logging_steps", "training.save_strategy", "training.save_steps",
        "training.save_total_limit", "training.eval_strategy", "training.eval_steps",
        "training.completion_only_loss", "training.append_eos", "training.neftune_noise_alpha",
        "training.dataset_num_proc", "lora.r",
        "lora.alpha", "lora.dropout", "lora.target_modules", "lora.task_type", "lora.use_rslora",
        "lora.modules_to_save", "quantization.load_in_4bit",
    }
)  # fmt: skip
_ATTENTION: Final = frozenset(
    {"model.transformers.attn_implementation", "model.transformers.use_flash_attention_2",
     "training.attn_implementation"}
)  # fmt: skip
# Further keys per trainer.
_EXTRA_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "axolotl": _ATTENTION
    | {"checkpoint.load", "training.packing", "lora.use_dora", "quantization.load_in_8bit"},
    "llamafactory": _ATTENTION
    | {"checkpoint.load", "lora.use_dora", "quantization.load_in_8bit", "quantization.quant_type",
       "quantization.double_quant", "training.liger"},
    "unsloth": frozenset({"lora.bias", "quantization.load_in_8bit"}),
}  # fmt: skip
NAMES: Final = (OURS, *_EXTRA_KEYS)
_TASK_TYPES: Final = frozenset({"sft", "lora_sft"})
# Not supported although `data` is: for these trainers the rows are tokenized before training.
_UNSUPPORTED_KEYS: Final = frozenset({"data.streaming", "data.shuffle_buffer"})


def _trainer(value: str) -> str:
    if not (_NAME.fullmatch(value) or _FUNCTION.fullmatch(value)):
        raise wrong("is not a trainer", f"write {', '.join(NAMES)}, or module:function")
    return value


# Name of a trainer, or a function as `module:function`.
TrainerName = Annotated[Text, AfterValidator(_trainer)]


def is_function(trainer: str) -> bool:
    """Return whether a trainer is a function, i.e. custom code chosen by the workflow."""
    return ":" in trainer


def feature_of(trainer: str) -> str:
    """Return the worker feature of a third-party trainer."""
    return f"trainer:{trainer}"


def trainer_faults(fields: Mapping[str, FieldInfo], blocks: Mapping[str, Any]) -> Faults:
    """Find keys of a training task that its trainer does not support.

    Args:
        fields: Fields of the task type's model.
        blocks: Attribute name → block, as passed to `faults` of a task type.
    """
    trainer = blocks.get("trainer", OURS)
    kind = fields["task_type"].default
    # The other libraries are integrated for supervised fine-tuning only.
    if trainer != OURS and kind not in _TASK_TYPES:
        return [("trainer", f"{kind} needs trainer: {OURS}", "remove it; other trainers support sft and lora_sft")]
    if trainer not in _EXTRA_KEYS:
        return []  # the default supports all keys; a plugin validates its own
    known = _COMMON_KEYS | _EXTRA_KEYS[trainer]
    hint = f"remove it, or train with trainer: {OURS}"
    return [
        (path, f"is not supported by trainer: {trainer}", hint)
        for name, value in blocks.items()
        for path in sorted(_given(name, value, fields[name].default))
        if path in _UNSUPPORTED_KEYS or not any(path == key or path.startswith(f"{key}.") for key in known)
    ]


def _given(name: str, value: Any, default: Any) -> Iterator[str]:
    """Yield the paths of the keys that are set, down to the leaves."""
    if not isinstance(value, BaseModel):
        # A key that is set to its default does not change anything, so it is not reported.
        if value != default:
            yield name
        return
    fields = type(value).model_fields
    for key in value.model_fields_set:
        yield from (f"{name}.{path}" for path in _given(key, getattr(value, key), fields[key].default))
