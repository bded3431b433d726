"""One example for each request body of the campaigns' routes, by the name of its model."""

from __future__ import annotations

from typing import Any, Final

BODIES: Final[dict[str, dict[str, Any]]] = {
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
