"""One example for each request body of the API, by the name of its model; the OpenAPI document shows them."""

from __future__ import annotations

import json
from typing import Any, Final

DOCUMENT: Final = """apiVersion: tunefleet/v1
kind: Workflow
metadata:
  name: hello
spec:
  taskType: echo
  data:
    type: list
    items: [hello]
"""
_DIGEST: Final = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
_TOKEN: Final = "att-0123456789ab.2cf24dba5fb0a30e26e83b2ac5b9e29e"
_FILE: Final = {"path": "train.jsonl", "digest": _DIGEST, "size_bytes": 5}

_TASK_BODIES: Final[dict[str, dict[str, Any]]] = {
    "SubmitRequest": {"document": DOCUMENT, "filename": "hello.yaml"},
    "CloneRequest": {"overrides": {"training.learning_rate": 1e-4}},
    "RetryRequest": {"overrides": {"stages.train.spec.training.learning_rate": 1e-4}},
    "CommandRequest": {"command": "set", "data": {"learning_rate": 1e-4}},
    "ResumeRequest": {"from_step": "best"},
    "StopRequest": {"save": True},
    "ElasticRequest": {"enabled": False},
    "ChatRequest": {"messages": [{"role": "user", "content": "How many are 2 dozen eggs?"}], "model": "tuned"},
    "ChatPoll": {"ready": True, "models": ["base", "tuned"], "wait_s": 0.0},
    "ChatPiece": {"text": "24", "finish": "stop", "usage": {"prompt_tokens": 9, "completion_tokens": 1}},
    "ManyRequest": {"action": "cancel", "task_ids": ["task-0123456789ab"]},
    "SessionRequest": {"code": "Zm9yIG9uZSB1c2Ugb25seSwgdGVuIG1pbnV0ZXM"},
    "KeyCreate": {"name": "laptop", "role": "member"},
    "ProjectCreate": {"name": "vision", "weight": 2.0, "max_running": 8, "gpu_hours": 500.0},
    "ProjectChange": {"gpu_hours": 800.0},
    "InvitationCreate": {"worker_id": "gpu-3", "tags": ["a100"], "expires_s": 3600},
    "JoinRequest": {"token": "tfj_example", "secret_hash": "0123456789abcdef" * 4, "name": "gpu-3"},
    "ChannelCreate": {"name": "team", "to": "https://example.org/hook", "on": ["failed", "stalled"]},
    "ChannelChange": {"enabled": False},
    "PruneRequest": {"older_than_s": 2_592_000, "dry_run": True},
    "BlobQuery": {"blobs": [_FILE]},
    "DirectAsk": {"size_bytes": 17_179_869_184},
    "DirectLinksAsk": {"parts": [1, 2, 3]},
    "DirectGiveUp": {"why": "The worker cannot reach s3.example.org."},
    "ArtifactCreate": {
        "name": "questions",
        "kind": "dataset",
        "files": [_FILE],
        "digest": "b5f2c2dc42b0c6ddbb2b2a4d4c5f3a6c2f6f4b3a1f0e9d8c7b6a5f4e3d2c1b0a",
    },
    "RegisterRequest": {
        "worker_id": "lab-3",
        "session": "5f0c1d",
        "state_id": "9a7e42",
        "capabilities": {
            "version": "0.1.0",
            "hostname": "lab-3",
            "executors": [{"kind": "lora_sft", "slot_class": "job"}, {"kind": "echo", "slot_class": "light"}],
            "slots": {"job": 1, "light": 32},
            "cpu_count": 16,
            "memory_total_bytes": 68_719_476_736,
            "memory_free_bytes": 51_539_607_552,
            "disk_free_bytes": 214_748_364_800,
        },
    },
    "ExchangeRequest": {
        "worker_id": "lab-3",
        "session": "5f0c1d",
        "wait_s": 0.0,
        "holding": [_TOKEN],
        "want": {"job": 1, "light": 32},
    },
    "ResultEnvelope": {
        "task_id": "task-0123456789ab",
        "worker_id": "lab-3",
        "result": {"ok": True, "items": [{"index": 0, "output": "hello"}]},
        "metadata": {"attempt": 1},
    },
    "JournalBatch": {
        "launch": "launch-1",
        "from_seq": 0,
        "lines": [json.dumps({"seq": 0, "at": 1.0, "type": "launch", "launch": "launch-1"})],
    },
}


_CAMPAIGN_BODIES: Final[dict[str, dict[str, Any]]] = {
    "CampaignApply": {
        "campaigns": {
            "daily": {
                "enabled": True,
                "datasets": [
                    {"name": "yahma/alpaca-cleaned", "field_instruction": "instruction", "field_output": "output"}
                ],
                "model_repo": "Qwen/Qwen2.5-0.5B",
                "hours_to_complete": 8,
                "samples_per_training": 150_000,
                "run_intervals": {"min_hours": 6, "max_hours": 8},
                "budget": {"max_cost": 100, "cost_per_task": 5},
            }
        },
        "start": True,
    },
    "CampaignRetry": {"cycle": 3, "step": "merge"},
    "CampaignRemerge": {"cycle": 3},
    "CampaignRollback": {"version": 2},
}


_JOB: Final = "exec-20260101-1"

_TRAINING_BODIES: Final[dict[str, dict[str, Any]]] = {
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


_FEDERATED_DIGEST: Final = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"

_FEDERATED_BODIES: Final[dict[str, dict[str, Any]]] = {
    "FederationSpec": {
        "name": "gsm8k",
        "base_model": "Qwen/Qwen2.5-0.5B",
        "strategy": {"name": "fedavg_exact"},
        "min_workers": 2,
        "deadline_s": 600,
        "rounds": 20,
    },
    "JobCreate": {
        "name": "gsm8k",
        "model_type": "Qwen/Qwen2.5-0.5B",
        "config": {"lora_rank": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]},
        "fed_config": {"aggregation_algorithm": "fedavg", "sync_interval": 100, "min_workers": 2, "max_workers": 8},
    },
    "ClaimChunk": {"workerId": 1, "completedChunk": 0},
    "UpdateCreate": {
        "worker": "lab-3",
        "step": 100,
        "num_examples": 1600,
        "sha256": _FEDERATED_DIGEST,
        "config": {
            "peft_type": "LORA",
            "base_model_name_or_path": "Qwen/Qwen2.5-0.5B",
            "r": 16,
            "lora_alpha": 32,
            "target_modules": ["q_proj", "v_proj"],
        },
        "base_version": 3,
        "upload_dtype": "bf16",
        "losses": {"before": 2.31, "after": 1.98},
    },
    "MemberChange": {"callback_url": "https://lab-3.example.org/adapters"},
    "RollbackRequest": {"version": 6},
    "TokenReplace": {"old_for_s": 3600},
}

BODIES: Final = _TASK_BODIES | _TRAINING_BODIES | _FEDERATED_BODIES | _CAMPAIGN_BODIES
