"""Keys of compatible formats that are not supported here.

Each is rejected by name with an alternative, rather than ignored. The reference is generated from these tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a key is rejected.

    Args:
        reason: Follows the name, as in "`image` has no effect: there are no containers"; for a task type, a clause.
    """

    reason: str
    instead: str


_LEAVE = "remove it"
_PYTHON = "use a `python` task"
_IMAGES = Refusal("image and audio generation is not supported", f"{_PYTHON} with the library in requirements")
_PICTURES = Refusal("only language models can be trained", f"{_PYTHON}, or `tunefleet run` with your own script")

# Task types of other systems that are not supported.
REFUSED_KINDS: Final[dict[str, Refusal]] = {
    "agent": Refusal(
        "agents are not supported", "use `inference` for single prompts, or a `python` task that calls the agent"
    ),
    "ssh": Refusal(
        "shells on workers are not supported", f"{_PYTHON} for code, or `tunefleet run` on the machine itself"
    ),
    "dev_model": Refusal("mock models are not supported", "use `inference` with `builtin:gsm8k-llama-2m`"),
    "diffusion": _IMAGES,
    "omni_text2audio": _IMAGES,
    "omni_text2general": _IMAGES,
    "omni_text2image": _IMAGES,
    "omni_text2speech": _IMAGES,
    "omni_text2video": _IMAGES,
    "image_classification": _PICTURES,
    "image_classification_training": _PICTURES,
    "data_profiling": Refusal(
        "database profiling is not supported", f"{_PYTHON} with network: bridge that queries the database"
    ),
    "data_retrieval": Refusal(
        "database connectors are not supported",
        f"{_PYTHON} with network: bridge that reads the database or bucket, its key as ${{secret:NAME}} in env",
    ),
}

_AGENT = Refusal("is only for agent tasks, which are not supported", "use `inference`, or a `python` task")
_SSH = Refusal("is only for ssh tasks, which are not supported", "use a `python` task")
_LATER = Refusal("is not available in this version", _LEAVE)

# Dotted path below `spec` → why it is rejected, for all task types, unless its value `says_nothing`.
REFUSED: Final[dict[str, Refusal]] = {
    "_upstreamResults": Refusal("is an internal key", "refer to the value as ${STAGE.result.KEY}"),
    # task types that are not supported
    "configName": _AGENT,
    "task": _AGENT,
    "agent": _AGENT,
    "port": Refusal("has no effect: requests are relayed by the server", _LEAVE),
    "interactive": _SSH,
    "user": _SSH,
    "authorizedKeys": _SSH,
    "idleTimeoutSeconds": _SSH,
    "sshOutput": _SSH,
    "image": Refusal("has no effect: containers are not used", "list packages as requirements"),
    "sandbox": _LATER,
    "harness": _AGENT,
    "service": Refusal("is part of a format that is not supported", "use `taskType: serve`"),
    "v2": Refusal("is part of a format that is not supported", "use stages or graph"),
    "model_binding": Refusal("is part of a format that is not supported", "use model"),
    # model
    "model.diffusers": _IMAGES,
    "model.adapters.kwargs": Refusal("is not supported", "set scale, apply and name directly"),
    # data
    "data.columns": Refusal("is only for data frames, which are not supported", "use type: graph_template"),
    "data.messages": Refusal("is only for data frames, which are not supported", "use type: graph_template"),
    "data.connection_string": REFUSED_KINDS["data_retrieval"],
    "data.params": REFUSED_KINDS["data_retrieval"],
}


def says_nothing(value: Any) -> bool:
    """Whether the value of a rejected key is a no-op: null, false, none, or empty."""
    return value is None or value is False or (isinstance(value, str | list | dict) and value in ("", "none", [], {}))


# Dotted path below `spec` → alternative for task types that do not support the key although another type does.
INSTEAD: Final[dict[str, str]] = {
    "accessMode": "remove it: only serve tasks have endpoints",
    "readinessTimeoutSeconds": "use limits.max_runtime_s",
    "ttlSeconds": "use limits.max_runtime_s",
    "enforce_cpu": "set resources.hardware.gpu.count: 0",
    "model.adapters": "to continue training an adapter, set checkpoint.load",
    "data.url": "set data.dataset_name to a Hub dataset",
    "data.column": "set data.text_field to the column",
    "data.name": "set data.config_name to the configuration",
    "data.type": "remove it; the key of the source determines it",
    "data.items": "write inline texts as data.prompts",
    "data.shuffle": "remove it: training always shuffles, with training.seed",
    "data.seed": "use training.seed",
    "data.buffer_size": "use data.shuffle_buffer with data.streaming",
    "data.prompts": "write the texts as data.items with type: list",
    "data.dataset_name": "use data.url with type: dataset",
    "data.text_field": "set data.column to the column",
    "training.steps": "use training.max_steps",
    "training.save_freq": "use training.save_steps",
    "training.log_with": "use training.report_to",
    "training.tracker_project_name": "use training.project",
    "training.save_safetensors": "remove it: models are always saved as safetensors",
    "parallel": "remove it: the task cannot be split",
    "shard": "remove it: the task cannot be split",
    "lora": "use `taskType: lora_sft`",
    "federation": "use lora_sft, dpo, kto or orpo: a federation trains adapters",
    "quantization": "use `taskType: lora_sft`",
}

# Key in other tools → our key; used as a hint only, the key is still rejected.
SYNONYMS: Final[dict[str, str]] = {
    "epochs": "num_train_epochs",
    "num_epochs": "num_train_epochs",
    "lr": "learning_rate",
    "per_device_train_batch_size": "batch_size",
    "distributed": "parallelism",
    "system": "system_prompt",
    "train_batch_size": "batch_size",
    "micro_batch_size": "batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "max_length": "max_seq_length",
    "sequence_len": "max_seq_length",
    "max_seq_len": "max_seq_length",
    "cutoff_len": "max_seq_length",
    "scheduler": "lr_scheduler_type",
    "lr_scheduler": "lr_scheduler_type",
    "optimizer": "optim",
    "assistant_only_loss": "completion_only_loss",
    "use_liger_kernel": "liger",
    "early_stopping_patience": "early_stopping",
    "gradient_clipping": "max_grad_norm",
    "rank": "r",
    "lora_r": "r",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "name_or_path": "identifier",
    "model_name_or_path": "identifier",
    "torch_dtype": "dtype",
    "dataset": "dataset_name",
    "file": "path",
    "kind": "taskType",
    "type": "taskType",
    "vram": "memory",
    "ram": "memory",
    "cores": "cpu",
}
# The same for keys that are in another block here: path below `spec`.
ELSEWHERE: Final[dict[str, str]] = {
    "accelerators": "resources.hardware.gpu",
    "base_model": "model.source.identifier",
    "gpus": "resources.hardware.gpu.count",
    "num_gpus": "resources.hardware.gpu.count",
    "num_nodes": "resources.nodes",
}
