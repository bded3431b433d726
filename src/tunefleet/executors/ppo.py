"""`ppo`: trains a model by a reward for its answers, in an environment with the last TRL that has it."""

from __future__ import annotations

from tunefleet.executors.sft import TrainingExecutor
from tunefleet.runtime import envs


class PpoExecutor(TrainingExecutor):
    """Proximal policy optimisation; leaves an adapter if the spec has a `lora` block, else a model."""

    kind = "ppo"
    program = "tunefleet.workloads.ppo:main"
    environment = "ppo"

    def unavailable_reason(self) -> str | None:
        """Name the training libraries that are missing, else say how to make the environment."""
        return super().unavailable_reason() or envs.reason("ppo")
