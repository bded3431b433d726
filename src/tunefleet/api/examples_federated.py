"""One example for each request body of the federations' routes, by the name of its model."""

from __future__ import annotations

from typing import Any, Final

_DIGEST: Final = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"

BODIES: Final[dict[str, dict[str, Any]]] = {
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
        "sha256": _DIGEST,
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
