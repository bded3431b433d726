"""Variables of the documents that have no effect here, each with what holds instead; start-up names the given ones."""

from __future__ import annotations

from typing import Final

_STATE: Final = "state is always kept, by the server in TUNEFLEET_DATA"
_FIGURES: Final = "the figures are in the API"
_SCORES: Final = "SCHEDULER_LAMBDA_TRAINING and its like weigh throughput against cost"
_TRIES: Final = "a document's retry says how often and after which pause a task is tried again"
_YIELDS: Final = "TUNEFLEET_YIELD and TUNEFLEET_YIELD_IDLE_S of a worker say what it does where others use a GPU"
_LOST: Final = "TUNEFLEET_LOST_AFTER_S says after how long a worker is given up"
_RANKS: Final = "the ranks of a training are started once, by its supervisor"
_STICKY: Final = "ENABLE_STAGE_WEIGHT_STICKINESS and ENABLE_CONTEXT_REUSE say which workers are preferred"

# Process → variable of a document that it does not heed → what holds instead.
UNSUPPORTED: Final[dict[str, dict[str, str]]] = {
    "server": {
        "CPU_ONLY_WEIGHT": _SCORES,
        "ENABLE_WORKER_WATCHDOG": "workers are always watched",
        "FIXED_PIPELINE_BINDING_IDLE_TIMEOUT_SEC": "tasks are handed out adaptively only",
        "GPU_WEIGHT": _SCORES,
        "HIGH_AVAIL_RATIO": "a document's parallel.max_shards says into how many parts a task is spread",
        "HOST_APP_LOG_LEVEL": "LOG_LEVEL is for the whole server",
        "HOST_APP_RELOAD": "restart the server; nothing is lost",
        "HOST_METRICS_DENSITY_BUCKET_SEC": _FIGURES,
        "HOST_METRICS_DIR": _FIGURES,
        "HOST_METRICS_ENABLE_DENSITY_PLOT": _FIGURES,
        "LOW_AVAIL_RATIO": "a document's parallel.max_shards says into how many parts a task is spread",
        "MAX_AUTO_SHARDS": "a document's parallel.max_shards says into how many parts a task is spread",
        "MODEL_STICKINESS_MAX_ENTRIES": _STICKY,
        "MODEL_STICKINESS_TTL_SEC": _STICKY,
        "ORCHESTRATOR_METRICS_DIR": _FIGURES,
        "ORCHESTRATOR_STATE_DIR": _STATE,
        "ORCHESTRATOR_STATE_ENABLED": _STATE,
        "RESULTS_DIR": "it is a worker's; the server keeps everything in TUNEFLEET_DATA",
        "STATE_FLUSH_INTERVAL_SEC": _STATE,
        "SUPERVISOR_GRPC_TARGET": "workers speak to the server themselves, over HTTP or REDIS_URL",
        "TASK_DLQ_LIMIT": "tasks that have failed stay in the store until they are removed or pruned",
        "TASK_NO_WORKER_GRACE_SEC": "a document's limits.max_queue_s ends a task that waits for too long",
        "TASK_POOL_BATCH_SIZE": "all that waits is looked at in each pass",
        "TASK_REQUEUE_DELAY_SEC": _TRIES,
        "TASK_REQUEUE_MAX_DELAY_SEC": _TRIES,
        "TASK_SLO_THRESHOLD": "a document's sloSeconds moves its task forward as the moment comes near",
        "WORKER_DEATH_CHECK_INTERVAL": _LOST,
        "WORKER_DEATH_GRACE_SEC": _LOST,
        "WORKER_FOREIGN_GPU_CONSECUTIVE": _YIELDS,
        "WORKER_FOREIGN_GPU_GATE": _YIELDS,
        "WORKER_FOREIGN_GPU_GRACE_SEC": _YIELDS,
        "WORKER_FOREIGN_GPU_MEM_MIB": _YIELDS,
        "WORKER_REAP_GRACE_SEC": _LOST,
        "WORKER_REHYDRATION_GRACE_SEC": _LOST,
    },
    "worker": {
        "HF_MODEL": "a document names its model",
        "KV_DPO_DISTRIBUTED": _RANKS,
        "KV_PPO_DISTRIBUTED": _RANKS,
        "KV_SFT_DISTRIBUTED": _RANKS,
        "MODEL_ARCHIVE_TAR_BIN": "archives are packed by the worker itself",
        "ORCHESTRATOR_STATE_DIR": _STATE,
        "ORCHESTRATOR_STATE_ENABLED": _STATE,
        "RESULTS_UPLOAD_URL": "results go to ORCHESTRATOR_BASE_URL",
        "SUPERVISOR_GRPC_TARGET": "a worker speaks to the server itself, at REDIS_URL or ORCHESTRATOR_BASE_URL",
        "VLLM_MODEL": "a document names its model",
        "WORKER_EXECUTOR_MASK": "install what the worker shall run; TUNEFLEET_JOB_SLOTS=0 takes no trainings",
        "WORKER_FOREIGN_GPU_CONSECUTIVE": _YIELDS,
        "WORKER_FOREIGN_GPU_GATE": _YIELDS,
        "WORKER_FOREIGN_GPU_GRACE_SEC": _YIELDS,
        "WORKER_FOREIGN_GPU_MEM_MIB": _YIELDS,
        "WORKER_LOG_TO_STDOUT": "the log goes to standard error and to worker.log",
        "WORKER_TOKEN": "TUNEFLEET_WORKER_KEY is a worker's key",
    },
}
