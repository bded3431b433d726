"""Names that the documents we stay compatible with know, and that have no effect here.

Each is refused by name, with what to use instead, so that nobody trains for a night with an option that did nothing.
The reference is made from these tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a name is refused.

    Args:
        reason: Follows the name, as in "`image` has no effect: there are no containers"; of a task kind, a clause.
    """

    reason: str
    instead: str


_LEAVE = "leave it out"
_PYTHON = "use a `python` task"
_IMAGES = Refusal("images and sound are not made", f"{_PYTHON} with the library that does it, as requirements")
_PICTURES = Refusal("only language models are trained", f"{_PYTHON}, or `tunefleet run` with your own script")

# Task kinds that other systems know and that are not run here.
REFUSED_KINDS: Final[dict[str, Refusal]] = {
    "agent": Refusal(
        "agents are not run", "use `inference` for single prompts, or a `python` task that calls the agent"
    ),
    "serve": Refusal("models are not served", "use `inference` with all prompts as its data"),
    "ssh": Refusal("there is no shell on a worker", f"{_PYTHON} for code, or `tunefleet run` on the machine itself"),
    "dev_model": Refusal("there are no stand-ins for models", "use `inference` with `builtin:gsm8k-llama-2m`"),
    "diffusion": _IMAGES,
    "omni_text2audio": _IMAGES,
    "omni_text2general": _IMAGES,
    "omni_text2image": _IMAGES,
    "omni_text2speech": _IMAGES,
    "omni_text2video": _IMAGES,
    "image_classification": _PICTURES,
    "image_classification_training": _PICTURES,
    "data_profiling": Refusal("databases are not examined", f"{_PYTHON} with network: bridge that asks the database"),
    "data_retrieval": Refusal(
        "there are no connectors to databases",
        f"{_PYTHON} with network: bridge that reads the database or bucket, its key as ${{secret:NAME}} in env",
    ),
}

_AGENT = Refusal("belongs to agent tasks, which are not run", "use `inference`, or a `python` task")
_SERVE = Refusal("belongs to serve tasks, which are not run", "use `inference` with all prompts as its data")
_SSH = Refusal("belongs to ssh tasks, which are not run", "use a `python` task")
_LATER = Refusal("is not available in this version", _LEAVE)

# Dotted path below `spec` → why it is refused, whatever the task kind, unless its value `says_nothing`.
REFUSED: Final[dict[str, Refusal]] = {
    "_upstreamResults": Refusal("is no key for people", "name what is needed with ${STAGE.result.KEY}"),
    # task kinds that are not run
    "configName": _AGENT,
    "task": _AGENT,
    "agent": _AGENT,
    "accessMode": _SERVE,
    "readinessTimeoutSeconds": _SERVE,
    "port": _SERVE,
    "ttlSeconds": Refusal("belongs to serve and ssh tasks, which are not run", "use limits.max_runtime_s"),
    "interactive": _SSH,
    "user": _SSH,
    "authorizedKeys": _SSH,
    "idleTimeoutSeconds": _SSH,
    "sshOutput": _SSH,
    "image": Refusal("has no effect: there are no containers", "name packages as requirements"),
    "sandbox": _LATER,
    "harness": _AGENT,
    "service": _SERVE,
    "v2": Refusal("belongs to a format that is not read", "write stages or graph"),
    "model_binding": Refusal("belongs to a format that is not read", "write model"),
    # model
    "model.diffusers": _IMAGES,
    "model.adapters.kwargs": Refusal("is not passed on", "write scale, apply and name themselves"),
    # data
    "data.columns": Refusal("belongs to data frames, which are not read", "use type: graph_template"),
    "data.messages": Refusal("belongs to data frames, which are not read", "use type: graph_template"),
    "data.connection_string": REFUSED_KINDS["data_retrieval"],
    "data.params": REFUSED_KINDS["data_retrieval"],
}


def says_nothing(value: Any) -> bool:
    """Whether the value of a refused key says what holds here anyway: null, false, none, or empty."""
    return value is None or value is False or (isinstance(value, str | list | dict) and value in ("", "none", [], {}))


# Dotted path below `spec` → what to write for a task kind that does not take the key, though another kind does.
INSTEAD: Final[dict[str, str]] = {
    "enforce_cpu": "write resources.hardware.gpu.count: 0",
    "model.adapters": "to train an adapter further, name it with checkpoint.load",
    "data.url": "name a hub dataset with data.dataset_name",
    "data.column": "name the column with data.text_field",
    "data.name": "name the configuration with data.config_name",
    "data.type": "leave it out; the key that names the data says it",
    "data.items": "write inline texts as data.prompts",
    "data.shuffle": "leave it out: a training always shuffles, by training.seed",
    "data.seed": "use training.seed",
    "data.buffer_size": "use data.shuffle_buffer with data.streaming",
    "data.prompts": "write the texts as data.items with type: list",
    "data.dataset_name": "name the dataset with data.url and type: dataset",
    "data.text_field": "name the column with data.column",
    "training.steps": "use training.max_steps",
    "training.save_freq": "use training.save_steps",
    "training.log_with": "use training.report_to",
    "training.tracker_project_name": "use training.project",
    "training.save_safetensors": "leave it out: models are always saved as safetensors",
    "parallel": "leave it out: the task runs once",
    "shard": "leave it out: the task runs once",
    "lora": "use `taskType: lora_sft`",
    "federation": "a federation trains adapters: use lora_sft, dpo, kto or orpo",
    "quantization": "use `taskType: lora_sft`",
}

# What other tools call a key → our name for it; a hint only, the key is still refused.
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
