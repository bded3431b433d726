"""The trainings on preferences (`dpo`, `kto`, `orpo`, `reward`) and on rewards (`grpo`, `rloo`)."""

from __future__ import annotations

from tunefleet.executors.sft import TrainingExecutor
from tunefleet.runtime import envs


class AlignmentExecutor(TrainingExecutor):
    """Aligns a model; leaves an adapter if the spec has a `lora` block, else a model."""

    program = "tunefleet.workloads.preference:main"


class DpoExecutor(AlignmentExecutor):
    """Direct preference optimisation, on pairs of answers."""

    kind = "dpo"


class KtoExecutor(AlignmentExecutor):
    """Kahneman-Tversky optimisation, on single answers that are good or bad."""

    kind = "kto"


class OrpoExecutor(AlignmentExecutor):
    """Odds-ratio preference optimisation, on pairs of answers and without a reference model."""

    kind = "orpo"


class RewardExecutor(AlignmentExecutor):
    """A reward model, on pairs of answers; leaves a sequence classifier."""

    kind = "reward"


class GrpoExecutor(AlignmentExecutor):
    """Group relative policy optimisation, on prompts and rewards."""

    kind = "grpo"


class RlooExecutor(AlignmentExecutor):
    """REINFORCE leave-one-out, on prompts and rewards."""

    kind = "rloo"


class PpoExecutor(TrainingExecutor):
    """Proximal policy optimisation; leaves an adapter if the spec has a `lora` block, else a model."""

    kind = "ppo"
    program = "tunefleet.workloads.ppo:main"
    environment = "ppo"

    def unavailable_reason(self) -> str | None:
        """Name the training libraries that are missing, else say how to make the environment."""
        return super().unavailable_reason() or envs.reason("ppo")
