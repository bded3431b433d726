"""Variables of the documents that have no effect here, each with what holds instead; start-up names the given ones."""

from __future__ import annotations

from typing import Final

UNSUPPORTED: Final[dict[str, dict[str, str]]] = {
    "server": {
        "ENABLE_WORKER_WATCHDOG": "workers are always watched",
        "FIXED_PIPELINE_BINDING_IDLE_TIMEOUT_SEC": "tasks are handed out adaptively only",
        "HOST_APP_LOG_LEVEL": "LOG_LEVEL is for the whole server",
        "HOST_APP_RELOAD": "restart the server; nothing is lost",
        "HOST_METRICS_DENSITY_BUCKET_SEC": "the figures are in the API",
        "HOST_METRICS_DIR": "the figures are in the API",
        "HOST_METRICS_ENABLE_DENSITY_PLOT": "the figures are in the API",
        "ORCHESTRATOR_METRICS_DIR": "the figures are in the API",
        "ORCHESTRATOR_STATE_DIR": "state is always kept, in TUNEFLEET_DATA",
        "ORCHESTRATOR_STATE_ENABLED": "state is always kept, in TUNEFLEET_DATA",
        "STATE_FLUSH_INTERVAL_SEC": "state is always kept, at each change",
        "WORKER_DEATH_CHECK_INTERVAL": "TUNEFLEET_LOST_AFTER_S says after how long a worker is given up",
        "WORKER_DEATH_GRACE_SEC": "TUNEFLEET_LOST_AFTER_S says after how long a worker is given up",
    },
    "worker": {
        "HF_MODEL": "a document names its model",
        "MODEL_ARCHIVE_TAR_BIN": "archives are packed by the worker itself",
        "RESULTS_UPLOAD_URL": "results go to ORCHESTRATOR_BASE_URL",
        "VLLM_MODEL": "a document names its model",
        "WORKER_EXECUTOR_MASK": "install what the worker shall run; TUNEFLEET_JOB_SLOTS=0 takes no trainings",
        "WORKER_LOG_TO_STDOUT": "the log goes to standard error and to worker.log",
    },
}
"""Process → variable of a document that it does not heed → what holds instead."""
