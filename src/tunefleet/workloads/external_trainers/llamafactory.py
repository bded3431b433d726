"""LLaMA-Factory: its YAML, run by `llamafactory-cli train` in the environment `llamafactory`."""

from __future__ import annotations

from typing import Any, Final

import yaml

from tunefleet.errors import InputError
from tunefleet.workloads.external_trainers.trainers import Plan, Request, training_arguments

CONFIG: Final = "llamafactory.yaml"
_ATTENTION: Final = {"flash_attention_2": "fa2", "flash_attention_3": "fa3", "sdpa": "sdpa", "eager": "disabled"}
# LLaMA-Factory requires a dataset name, although the rows are read from `tokenized_path`.
_ROWS: Final = "tunefleet"


def plan(request: Request) -> Plan:
    """Translate a training task for LLaMA-Factory.

    Raises:
        InputError: If it does not support the attention kernel or the adapter's alpha.
    """
    env = {"USE_MODELSCOPE_HUB": "0", "NPROC_PER_NODE": str(max(1, request.gpus))}
    text = yaml.safe_dump(config(request), sort_keys=False)
    return Plan(("llamafactory-cli", "train", CONFIG), {CONFIG: text}, env, "llamafactory")


def config(request: Request) -> dict[str, Any]:
    """Return LLaMA-Factory's configuration."""
    training = request.spec.training
    if request.attention is not None and request.attention not in _ATTENTION:
        raise InputError(
            f"LLaMA-Factory has no attention kernel {request.attention}.",
            hint=f"Supported: {', '.join(_ATTENTION)}.",
        )
    held_out = request.held_out is not None
    found: dict[str, Any] = {
        "stage": "sft",
        "do_train": True,
        "do_eval": held_out or None,
        "model_name_or_path": request.model,
        "model_revision": request.revision,
        "trust_remote_code": request.spec.model.trust_remote_code or None,
        "flash_attn": None if request.attention is None else _ATTENTION[request.attention],
        # Rows are already tokenized, so no template is applied to them.
        "template": "empty",
        "dataset": _ROWS,
        "eval_dataset": _ROWS if held_out else None,
        "tokenized_path": str(request.tokenized),
        "cutoff_len": training.max_seq_length,
        "output_dir": "output",
        "report_to": "none",
        "disable_gradient_checkpointing": not training.gradient_checkpointing,
        "enable_liger_kernel": training.liger or None,
        **training_arguments(request),
        **_adapter(request),
    }
    return {name: value for name, value in found.items() if value is not None}


def _adapter(request: Request) -> dict[str, Any]:
    lora, quantized = request.lora, request.quantized
    if lora is None:
        return {"finetuning_type": "full"}
    if not float(lora.alpha).is_integer():
        raise InputError(f"LLaMA-Factory requires a whole number for lora.alpha, not {lora.alpha}.")
    everything = lora.target_modules == "all-linear"
    found: dict[str, Any] = {
        "finetuning_type": "lora",
        "adapter_name_or_path": request.start,
        "lora_rank": lora.r,
        "lora_alpha": int(lora.alpha),
        "lora_dropout": lora.dropout,
        "lora_target": "all" if everything else ",".join(lora.target_modules),
        "additional_target": ",".join(lora.modules_to_save) or None,
        "use_rslora": lora.use_rslora or None,
        "use_dora": lora.use_dora or None,
    }
    if quantized is not None:
        found |= {"quantization_bit": 4 if quantized.load_in_4bit else 8, "quantization_method": "bnb"}
        if quantized.load_in_4bit:
            found |= {"quantization_type": quantized.quant_type, "double_quantization": quantized.double_quant}
    return found
