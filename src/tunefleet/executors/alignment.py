"""Preference training (`dpo`, `kto`, `orpo`, `reward`) and reinforcement learning (`grpo`, `rloo`, `ppo`)."""

from __future__ import annotations

from tunefleet.executors.sft import TrainingExecutor
from tunefleet.runtime import envs


class AlignmentExecutor(TrainingExecutor):
    """Aligns a model; leaves an adapter if the spec has a `lora` block, else a model."""

    program = "tunefleet.workloads.preference:main"


class DpoExecutor(AlignmentExecutor):
    """Direct preference optimization, on pairs of answers."""

    kind = "dpo"


class KtoExecutor(AlignmentExecutor):
    """Kahneman-Tversky optimization, on single answers labeled good or bad."""

    kind = "kto"


class OrpoExecutor(AlignmentExecutor):
    """Odds-ratio preference optimization, on pairs of answers, without a reference model."""

    kind = "orpo"


class RewardExecutor(AlignmentExecutor):
    """A reward model, on pairs of answers; leaves a sequence classifier."""

    kind = "reward"


class GrpoExecutor(AlignmentExecutor):
    """Group relative policy optimization, on prompts and rewards."""

    kind = "grpo"


class RlooExecutor(AlignmentExecutor):
    """REINFORCE leave-one-out, on prompts and rewards."""

    kind = "rloo"


class PpoExecutor(TrainingExecutor):
    """Proximal policy optimization; leaves an adapter if the spec has a `lora` block, else a model."""

    kind = "ppo"
    program = "tunefleet.workloads.ppo:main"
    environment = "ppo"

    def unavailable_reason(self) -> str | None:
        """Return which training libraries are missing, or that the environment is not ready."""
        return super().unavailable_reason() or envs.reason("ppo")
