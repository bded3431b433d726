"""Names that the documents we stay compatible with know, and that have no effect in this version.

Each is refused by name, with what to use instead, so that nobody trains for a night with an option that did nothing.
The reference and the compatibility page are made from these tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a name is refused.

    Args:
        reason: Follows the name, as in "`stages` is not available in this version".
        instead: What to do.
    """

    reason: str
    instead: str


_LATER = "is not available in this version"
_LEAVE = "leave it out"


def _later(instead: str = _LEAVE) -> Refusal:
    return Refusal(_LATER, instead)


def _only_for(kinds: str, instead: str = _LEAVE) -> Refusal:
    return Refusal(f"belongs to {kinds} tasks, which are not available in this version", instead)


_INFERENCE = _only_for("inference")
_PPO = _only_for("ppo")
_DEVICES = Refusal("has no effect: the worker gives each task its GPU", "say what it needs in resources.hardware.gpu")
_SEVERAL = Refusal("is for several GPUs, which one task cannot use in this version", _LEAVE)
_FETCH = _later("download the file and name it with `path`; it travels with the submit")
_RESULTS = Refusal(
    "has no effect: results always go to the server that placed the task",
    "leave it out, and fetch them with `tunefleet artifacts get`",
)
_LOAD = _later("fetch the files with `tunefleet artifacts get` and name them with checkpoint.load.path")

REFUSED_KINDS: Final = frozenset(
    {
        "agent",
        "api",
        "data_profiling",
        "data_retrieval",
        "dev_model",
        "diffusion",
        "dpo",
        "embedding",
        "image_classification",
        "image_classification_training",
        "inference",
        "omni_text2audio",
        "omni_text2general",
        "omni_text2image",
        "omni_text2speech",
        "omni_text2video",
        "ppo",
        "python",
        "rag",
        "serve",
        "ssh",
    }
)
"""Task kinds that the documents know."""

REFUSED: Final[dict[str, Refusal]] = {
    # pipelines
    "_upstreamResults": Refusal("is no key for people", "name what is needed with ${STAGE.result.KEY}"),
    # parallelism and service levels
    "parallel": _later(),
    "shard": _later(),
    "sloSeconds": _later("use limits.max_queue_s and limits.max_runtime_s"),
    "enforce_cpu": Refusal("belongs to inference tasks", "write resources.hardware.gpu.count: 0"),
    # blocks of other task kinds
    "inference": _INFERENCE,
    "postprocess": _INFERENCE,
    "generation": _PPO,
    "reward_model": _PPO,
    "qdrant": _only_for("rag"),
    "embedding": _only_for("rag"),
    "search": _only_for("rag"),
    "query": _only_for("rag"),
    "configName": _only_for("agent"),
    "task": _only_for("agent"),
    "agent": _only_for("agent"),
    # ours, of later versions
    "federation": _later(),
    "trainer": _later(),
    "engine": _later(),
    "resources.nodes": _later(),
    # model
    "model.vllm": _INFERENCE,
    "model.diffusers": _only_for("diffusion"),
    "model.adapters": _only_for("inference", "to train an adapter further, name it with checkpoint.load.path"),
    "model.config": Refusal("is read by nobody", "use training.fp16 and model.transformers"),
    # data
    "data.preferences": _only_for("dpo"),
    "data.chosen_column": _only_for("dpo"),
    "data.rejected_column": _only_for("dpo"),
    "data.template": _only_for("inference"),
    "data.url": Refusal("belongs to inference tasks", "name a hub dataset with data.dataset_name"),
    "data.column": Refusal("belongs to inference tasks", "name the column with data.text_field"),
    "data.name": Refusal("belongs to inference tasks", "name the configuration with data.config_name"),
    "data.type": Refusal("belongs to inference and echo tasks", "leave it out; the key that names the data says it"),
    "data.items": Refusal("belongs to inference and echo tasks", "write inline texts as data.prompts"),
    "data.shuffle": Refusal("has no effect: a training always shuffles", "set the order with training.seed"),
    "data.seed": Refusal("has no effect: a training has one seed", "use training.seed"),
    "data.buffer_size": _INFERENCE,
    "data.metadata_columns": _INFERENCE,
    "data.metadata_include_all": _INFERENCE,
    "data.jsonl.url": _FETCH,
    "data.jsonl.download_url": _FETCH,
    "data.jsonl.headers": _FETCH,
    "data.jsonl.download_headers": _FETCH,
    "data.jsonl.download_timeoutSec": _FETCH,
    "data.jsonl.timeoutSec": _FETCH,
    "data.jsonl.timeout": _FETCH,
    "data.jsonl.query_field": _PPO,
    "data.jsonl.chosen_field": _only_for("dpo"),
    "data.jsonl.rejected_field": _only_for("dpo"),
    # training
    "training.visible_devices": _DEVICES,
    "training.primary_gpu": _DEVICES,
    "training.deepspeed": _SEVERAL,
    "training.auto_deepspeed": _SEVERAL,
    "training.auto_deepspeed_stage": _SEVERAL,
    "training.zero_stage": _SEVERAL,
    "training.ddp_find_unused_parameters": _SEVERAL,
    "training.resume_from_path": Refusal(
        "is written elsewhere", "name the weights to start from with checkpoint.load.path"
    ),
    "training.mini_batch_size": _PPO,
    "training.num_mini_batches": _PPO,
    "training.steps": _only_for("ppo", "use training.max_steps"),
    "training.ppo_epochs": _PPO,
    "training.kl_coef": _PPO,
    "training.temperature": _PPO,
    "training.target_kl": _PPO,
    "training.optimize_cuda_cache": _PPO,
    "training.save_safetensors": Refusal("has no effect: models are always saved as safetensors", _LEAVE),
    "training.save_freq": Refusal("belongs to ppo and dpo tasks", "use training.save_steps"),
    "training.log_with": Refusal("belongs to ppo tasks", "use training.report_to"),
    "training.tracker_project_name": Refusal("belongs to ppo tasks", "set the tracker's own variable on the worker"),
    # output
    "output.destination.path": _RESULTS,
    "output.destination.url": _RESULTS,
    "output.destination.method": _RESULTS,
    "output.destination.headers": _RESULTS,
    "output.destination.timeoutSec": _RESULTS,
    "output.destination.retries": _RESULTS,
    "output.destination.retryBackoffSec": _RESULTS,
    # checkpoint
    "checkpoint.load.uri": Refusal("is written elsewhere", "use checkpoint.load.path"),
    "checkpoint.load.taskId": _LOAD,
    "checkpoint.load.task_id": _LOAD,
    "checkpoint.load.url": _LOAD,
    "checkpoint.load.filename": _LOAD,
    "checkpoint.load.base_url": _LOAD,
    "checkpoint.load.headers": _LOAD,
    "checkpoint.load.timeoutSec": _LOAD,
}
"""Dotted path below `spec` → why it is refused."""

SYNONYMS: Final[dict[str, str]] = {
    "epochs": "num_train_epochs",
    "num_epochs": "num_train_epochs",
    "lr": "learning_rate",
    "per_device_train_batch_size": "batch_size",
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
"""What other tools call a key → our name for it; a hint only, the key is still refused."""
