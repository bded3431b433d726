"""Alignment task types: with preferences `dpo`, `kto`, `orpo`, `reward`; with rewards `grpo`, `rloo`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from tunefleet.spec.options.generation import RewardModelSpec
from tunefleet.spec.options.preference import (
    DpoTrainingSpec,
    KtoTrainingSpec,
    OrpoTrainingSpec,
    PreferenceTrainingSpec,
    RewardTrainingSpec,
)
from tunefleet.spec.options.preference_data import LabelledData, PairData, PromptRows, SeparatedRows
from tunefleet.spec.options.rewards import (
    DrawingSpec,
    ExactMatchReward,
    FunctionReward,
    GroupTrainingSpec,
    GrpoTrainingSpec,
    Reward,
    RlooTrainingSpec,
)
from tunefleet.spec.tasks.cross_field_checks import Faults
from tunefleet.spec.tasks.training_tasks import AdaptableTaskSpec, FederableTaskSpec

_EVAL_HINT = "add data.eval with a split, a path or a fraction"


class AlignmentTaskSpec(AdaptableTaskSpec):
    """Keys of alignment task types."""

    data: SeparatedRows
    """Training data."""
    training: PreferenceTrainingSpec = Field(default_factory=PreferenceTrainingSpec)
    """Hyperparameters."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        training: PreferenceTrainingSpec | None = blocks.get("training")
        data: SeparatedRows | None = blocks.get("data")
        if data is not None and data.eval is None and training is not None and training.eval_strategy != "no":
            found.append(("training.eval_strategy", "requires an eval set", _EVAL_HINT))
        return found


class DpoSpec(AlignmentTaskSpec, FederableTaskSpec):
    """`taskType: dpo`: trains a model on preference pairs (DPO)."""

    task_type: Literal["dpo"] = Field(default="dpo", alias="taskType")
    """`dpo`"""
    data: PairData
    """Training data."""
    training: DpoTrainingSpec = Field(default_factory=DpoTrainingSpec)
    """Hyperparameters."""


class KtoSpec(AlignmentTaskSpec, FederableTaskSpec):
    """`taskType: kto`: trains a model on answers labeled desirable or undesirable (KTO)."""

    smallest_batch = 2

    task_type: Literal["kto"] = Field(default="kto", alias="taskType")
    """`kto`"""
    data: LabelledData
    """Training data."""
    training: KtoTrainingSpec = Field(default_factory=KtoTrainingSpec)
    """Hyperparameters."""


class OrpoSpec(AlignmentTaskSpec, FederableTaskSpec):
    """`taskType: orpo`: trains a model on preference pairs without a reference model (ORPO)."""

    task_type: Literal["orpo"] = Field(default="orpo", alias="taskType")
    """`orpo`"""
    data: PairData
    """Training data."""
    training: OrpoTrainingSpec = Field(default_factory=OrpoTrainingSpec)
    """Hyperparameters."""


class RewardSpec(AlignmentTaskSpec):
    """`taskType: reward`: trains a reward model, a sequence classifier, on preference pairs."""

    task_type: Literal["reward"] = Field(default="reward", alias="taskType")
    """`reward`"""
    data: PairData
    """Training data."""
    training: RewardTrainingSpec = Field(default_factory=RewardTrainingSpec)
    """Hyperparameters."""


class RewardedTaskSpec(AlignmentTaskSpec):
    """Keys of task types that sample answers and reward them. There is no default reward."""

    data: PromptRows
    """The prompts."""
    training: GroupTrainingSpec = Field(default_factory=GroupTrainingSpec)
    """Hyperparameters."""
    rewards: Annotated[tuple[Reward, ...], Field(max_length=20)] = ()
    """Rule-based rewards; several are summed."""
    reward_model: RewardModelSpec | None = None
    """Reward model, in addition to or instead of `rewards`."""
    generation: DrawingSpec = Field(default_factory=DrawingSpec)
    """Sampling parameters."""

    @property
    def requires_code(self) -> bool:
        """Whether custom code of a model or a reward function is run."""
        reward_code = self.reward_model is not None and self.reward_model.trust_remote_code
        return (
            self.model.trust_remote_code or reward_code or any(isinstance(one, FunctionReward) for one in self.rewards)
        )

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        rewards, data = blocks.get("rewards"), blocks.get("data")
        if rewards == () and "reward_model" in blocks and blocks["reward_model"] is None:
            hint = "add rewards with exact_match, regex, format, length or function, or a reward_model"
            found.append(("", "has no reward", hint))
        for index, one in enumerate(rewards or ()):
            if isinstance(one, ExactMatchReward) and isinstance(data, PromptRows) and data.columns[1] is None:
                where = f"rewards.{index}.type"
                found.append((where, "needs a reference answer in each row", "set data.reference_column"))
        return found


class GrpoSpec(RewardedTaskSpec):
    """`taskType: grpo`: trains a model with group-relative rewards (GRPO)."""

    task_type: Literal["grpo"] = Field(default="grpo", alias="taskType")
    """`grpo`"""
    training: GrpoTrainingSpec = Field(default_factory=GrpoTrainingSpec)
    """Hyperparameters."""


class RlooSpec(RewardedTaskSpec):
    """`taskType: rloo`: trains a model with rewards relative to the mean of the other answers (RLOO)."""

    task_type: Literal["rloo"] = Field(default="rloo", alias="taskType")
    """`rloo`"""
    training: RlooTrainingSpec = Field(default_factory=RlooTrainingSpec)
    """Hyperparameters."""
