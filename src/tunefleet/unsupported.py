"""Variables of compatible systems that have no effect, each with the alternative; logged at start-up if set."""

from __future__ import annotations

from typing import Final

_STATE: Final = "the server always stores its state in TUNEFLEET_DATA"
_FIGURES: Final = "metrics are available in the API"
_SCORES: Final = "use TUNEFLEET_LAMBDA_TRAINING and related variables to weigh throughput against cost"
_TRIES: Final = "set retry in the workflow file for retries and their delay"
_YIELDS: Final = "use TUNEFLEET_YIELD and TUNEFLEET_YIELD_IDLE_S on workers that share GPUs with other processes"
_LOST: Final = "use TUNEFLEET_LOST_AFTER_S for the time after which a worker counts as lost"
_RANKS: Final = "the supervisor starts the ranks of a training job"
_STICKY: Final = "use TUNEFLEET_STICKINESS and TUNEFLEET_CONTEXT_REUSE to prefer workers with cached files"

# Process → variable without effect → the alternative.
UNSUPPORTED_VARIABLES: Final[dict[str, dict[str, str]]] = {
    "server": {
        "CPU_ONLY_WEIGHT": _SCORES,
        "ENABLE_WORKER_WATCHDOG": "workers are always monitored",
        "FIXED_PIPELINE_BINDING_IDLE_TIMEOUT_SEC": "only adaptive dispatch is supported",
        "GPU_WEIGHT": _SCORES,
        "HIGH_AVAIL_RATIO": "set parallel.max_shards in the workflow file for the number of shards",
        "HOST_APP_LOG_LEVEL": "TUNEFLEET_LOG_LEVEL applies to the whole server",
        "HOST_APP_RELOAD": "restart the server; no state is lost",
        "HOST_METRICS_DENSITY_BUCKET_SEC": _FIGURES,
        "HOST_METRICS_DIR": _FIGURES,
        "HOST_METRICS_ENABLE_DENSITY_PLOT": _FIGURES,
        "LOW_AVAIL_RATIO": "set parallel.max_shards in the workflow file for the number of shards",
        "MAX_AUTO_SHARDS": "set parallel.max_shards in the workflow file for the number of shards",
        "MODEL_STICKINESS_MAX_ENTRIES": _STICKY,
        "MODEL_STICKINESS_TTL_SEC": _STICKY,
        "ORCHESTRATOR_METRICS_DIR": _FIGURES,
        "ORCHESTRATOR_STATE_DIR": _STATE,
        "ORCHESTRATOR_STATE_ENABLED": _STATE,
        "RESULTS_DIR": "it applies to workers; the server stores everything in TUNEFLEET_DATA",
        "STATE_FLUSH_INTERVAL_SEC": _STATE,
        "SUPERVISOR_GRPC_TARGET": "workers connect to the server directly, over HTTP or TUNEFLEET_REDIS_URL",
        "TASK_DLQ_LIMIT": "failed tasks are kept until they are removed or pruned",
        "TASK_POOL_BATCH_SIZE": "each scheduling cycle considers all queued tasks",
        "TASK_REQUEUE_DELAY_SEC": _TRIES,
        "TASK_REQUEUE_MAX_DELAY_SEC": _TRIES,
        "TASK_SLO_THRESHOLD": "set sloSeconds in the workflow file to prioritize a task near its deadline",
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
        "HF_MODEL": "set the model in the workflow file",
        "KV_DPO_DISTRIBUTED": _RANKS,
        "KV_PPO_DISTRIBUTED": _RANKS,
        "KV_SFT_DISTRIBUTED": _RANKS,
        "MODEL_ARCHIVE_TAR_BIN": "the worker creates archives without tar",
        "ORCHESTRATOR_STATE_DIR": _STATE,
        "ORCHESTRATOR_STATE_ENABLED": _STATE,
        "RESULTS_UPLOAD_URL": "results go to TUNEFLEET_SERVER_URL",
        "SUPERVISOR_GRPC_TARGET": "workers connect directly, at TUNEFLEET_REDIS_URL or TUNEFLEET_SERVER_URL",
        "VLLM_MODEL": "set the model in the workflow file",
        "WORKER_EXECUTOR_MASK": "install only the extras you need; TUNEFLEET_JOB_SLOTS=0 accepts no training tasks",
        "WORKER_FOREIGN_GPU_CONSECUTIVE": _YIELDS,
        "WORKER_FOREIGN_GPU_GATE": _YIELDS,
        "WORKER_FOREIGN_GPU_GRACE_SEC": _YIELDS,
        "WORKER_FOREIGN_GPU_MEM_MIB": _YIELDS,
        "WORKER_LOG_TO_STDOUT": "the log is written to standard error and to worker.log",
        "WORKER_TOKEN": "use TUNEFLEET_WORKER_KEY for the worker's key",
    },
}
