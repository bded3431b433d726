"""One example for each request body of the training-agent routes, by the name of its model."""

from __future__ import annotations

from typing import Any, Final

_JOB: Final = "exec-20260101-1"

BODIES: Final[dict[str, dict[str, Any]]] = {
    "ReportedPoint": {
        "step": 10,
        "epoch": 0.1,
        "train_loss": 1.25,
        "learning_rate": 2e-4,
        "gpu_memory_allocated_gb": 7.5,
        "timestamp": "2026-01-01T12:00:00Z",
        "total_steps": 100,
    },
    "MetricBatch": {"job_id": _JOB, "metrics": [{"step": 10, "epoch": 0.1, "train_loss": 1.25}]},
    "StatusPatch": {"status": "running"},
    "LogLines": {"logs": ["[2026-01-01 12:00:00] Training from step 0 to 100."], "offset": 0},
    "JobRegistration": {
        "job_id": _JOB,
        "model_name": "Qwen/Qwen2.5-0.5B",
        "dataset_path": "train.jsonl",
        "name": "my job",
        "config": {"training": {"method": "sft", "use_lora": True, "num_epochs": 1}},
    },
    "ControlAction": {"action": "pause"},
    "ResumeJob": {"config_adjustments": {"learning_rate": 1e-4}},
    "ParameterUpdate": {"learning_rate": 1e-4},
    "PredictionBatch": {
        "job_id": _JOB,
        "predictions": [{"step": 10, "epoch": 0.1, "sample_index": 0, "prompt": "2 + 2 =", "prediction": "4"}],
    },
    "StartJob": {"config_id": "wf-0123456789ab", "name": "again"},
    "Heartbeat": {"holding": [_JOB], "want": 1},
}
