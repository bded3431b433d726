"""Unsloth: a script shipped with Tunefleet and its settings file, run in the environment `unsloth`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tunefleet.errors import InputError, MachineError
from tunefleet.workloads.external_trainers.trainers import SEVEN_LINEAR, Plan, Request, training_arguments

SCRIPT: Final = "train_with_unsloth.py"
CONFIG: Final = "unsloth.json"


def plan(request: Request) -> Plan:
    """Translate a training task for Unsloth.

    Raises:
        InputError: If the spec continues an adapter.
        MachineError: If the job has several GPUs; Unsloth supports one.
    """
    if request.start is not None:
        raise InputError("Unsloth cannot continue an adapter.", hint="Remove checkpoint.load, or use trainer: trl.")
    if request.gpus > 1:
        raise MachineError(
            f"Unsloth supports one GPU, but the run has {request.gpus}.",
            hint="Set resources.hardware.gpu.count: 1, or use trainer: axolotl.",
        )
    script = Path(__file__).with_name("unsloth_script.txt").read_text(encoding="utf-8")
    text = json.dumps(config(request), indent=1)
    env = {"UNSLOTH_DISABLE_STATISTICS": "1"}
    return Plan(("python", SCRIPT, CONFIG), {SCRIPT: script, CONFIG: text}, env, "unsloth")


def config(request: Request) -> dict[str, Any]:
    """Return the settings that the script reads."""
    lora, quantized, training = request.lora, request.quantized, request.spec.training
    four = quantized is not None and quantized.load_in_4bit
    eight = quantized is not None and quantized.load_in_8bit
    checkpointing = "unsloth" if training.gradient_checkpointing else False
    model = {
        "model_name": request.model,
        "revision": request.revision,
        "max_seq_length": training.max_seq_length,
        "dtype": request.compute,
        "load_in_4bit": four,
        "load_in_8bit": eight,
        "full_finetuning": lora is None,
        "trust_remote_code": request.spec.model.trust_remote_code,
        "use_gradient_checkpointing": checkpointing,
        "random_state": training.seed,
    }
    adapter = None
    if lora is not None:
        everything = lora.target_modules == "all-linear"
        adapter = {
            "r": lora.r,
            "lora_alpha": lora.alpha,
            "lora_dropout": lora.dropout,
            "bias": lora.bias,
            "target_modules": list(SEVEN_LINEAR if everything else lora.target_modules),
            "modules_to_save": list(lora.modules_to_save) or None,
            "use_rslora": lora.use_rslora,
            "use_gradient_checkpointing": checkpointing,
            "random_state": training.seed,
        }
    return {
        "model": model,
        "adapter": adapter,
        "arguments": {**training_arguments(request), "output_dir": "output", "report_to": "none"},
        "train": str(request.train),
        "held_out": None if request.held_out is None else str(request.held_out),
    }
