"""`spec.trainer`: whose code trains, and which keys of a training each of the others heeds.

Keys that a trainer does not heed are refused by name when a document is checked: none is silently without effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from tunefleet.spec.base import Text, wrong

Faults = list[tuple[str, str, str | None]]
OURS: Final = "trl"
"""The trainer that Tunefleet itself drives; heeds every key."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

# What all of them heed: an attribute of the spec, and all below it.
_ALWAYS: Final = frozenset(
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
_MORE: Final[Mapping[str, frozenset[str]]] = {
    "axolotl": _ATTENTION
    | {"checkpoint.load", "training.packing", "lora.use_dora", "quantization.load_in_8bit"},
    "llamafactory": _ATTENTION
    | {"checkpoint.load", "lora.use_dora", "quantization.load_in_8bit", "quantization.quant_type",
       "quantization.double_quant", "training.liger"},
    "unsloth": frozenset({"lora.bias", "quantization.load_in_8bit"}),
}  # fmt: skip
"""What each heeds beside that."""
NAMES: Final = (OURS, *_MORE)
_KINDS: Final = frozenset({"sft", "lora_sft"})
_NEVER: Final = frozenset({"data.streaming", "data.shuffle_buffer"})
"""Below a key of the others, and yet not heeded: the rows are made into tokens before."""


def _trainer(value: str) -> str:
    if not (_NAME.fullmatch(value) or _FUNCTION.fullmatch(value)):
        raise wrong("is no name of a trainer", f"write {', '.join(NAMES)}, or module:function")
    return value


# Name of a trainer, or a function as `module:function`.
TrainerName = Annotated[Text, AfterValidator(_trainer)]


def is_function(trainer: str) -> bool:
    """Return whether a trainer is named as a function, which the document itself chooses to run."""
    return ":" in trainer


def feature_of(trainer: str) -> str:
    """Return the feature that a worker has which has a trainer of another package's."""
    return f"trainer:{trainer}"


def trainer_faults(fields: Mapping[str, FieldInfo], blocks: Mapping[str, Any]) -> Faults:
    """Find keys of a training that its trainer does not heed.

    Args:
        fields: Of the task kind's model.
        blocks: Attribute name → block, as `faults` of a task kind takes them.
    """
    trainer = blocks.get("trainer", OURS)
    kind = fields["task_type"].default
    if trainer != OURS and kind not in _KINDS:
        return [("trainer", f"only {OURS} trains {kind}", "leave it out; others train sft and lora_sft")]
    if trainer not in _MORE:
        return []  # ours heeds all, and what a plugin heeds is its own to say
    known = _ALWAYS | _MORE[trainer]
    hint = f"leave it out, or train with trainer: {OURS}"
    return [
        (path, f"is not heeded by trainer: {trainer}", hint)
        for name, value in blocks.items()
        for path in sorted(_given(name, value, fields[name].default))
        if path in _NEVER or not any(path == key or path.startswith(f"{key}.") for key in known)
    ]


def _given(name: str, value: Any, default: Any) -> Iterator[str]:
    """Yield the paths of the keys that were written, down to those without keys of their own."""
    if not isinstance(value, BaseModel):
        if value != default:
            yield name
        return
    fields = type(value).model_fields
    for key in value.model_fields_set:
        yield from (f"{name}.{path}" for path in _given(key, getattr(value, key), fields[key].default))
