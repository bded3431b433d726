"""The plan of a training run, called on the worker. The command imports the heavy libraries, in its own process."""

from __future__ import annotations

import json

from tunefleet.errors import InputError
from tunefleet.workloads.external_trainers import Plan, Request


def plan(request: Request) -> Plan:
    """Return the training command and its configuration file.

    Raises:
        InputError: If a key is set that the command does not support: the task fails with this message.
    """
    training, lora = request.spec.training, request.lora
    if lora is None or training.packing:
        raise InputError("my_trainers.simple trains adapters (lora_sft) without packing.")
    wanted = {
        "model": request.model,
        "train": str(request.train),
        "rank": lora.r,
        "targets": lora.target_modules,
        "max_steps": training.max_steps,
        "batch_size": training.batch_size,
        "learning_rate": training.learning_rate,
        "seed": training.seed,
    }
    return Plan(("python", "-m", "my_trainers.run", "wanted.json"), {"wanted.json": json.dumps(wanted)})
