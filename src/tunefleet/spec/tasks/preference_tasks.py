"""The kinds that align a model: with preferences `dpo`, `kto`, `orpo`, `reward`; with rewards `grpo`, `rloo`."""

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
from tunefleet.spec.options.preferred import AskedData, JudgedData, PairData, SeparatedRows
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

_HELD_OUT = "add data.eval with a split, a path or a fraction"


class AlignmentTaskSpec(AdaptableTaskSpec):
    """What the kinds have that align a model."""

    data: SeparatedRows
    """What it is trained on."""
    training: PreferenceTrainingSpec = Field(default_factory=PreferenceTrainingSpec)
    """How it is trained."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        training: PreferenceTrainingSpec | None = blocks.get("training")
        data: SeparatedRows | None = blocks.get("data")
        if data is not None and data.eval is None and training is not None and training.eval_strategy != "no":
            found.append(("training.eval_strategy", "needs held-out rows", _HELD_OUT))
        return found


class DpoSpec(AlignmentTaskSpec, FederableTaskSpec):
    """`taskType: dpo`: trains a model to prefer the better of two answers."""

    task_type: Literal["dpo"] = Field(default="dpo", alias="taskType")
    """`dpo`"""
    data: PairData
    """What it is trained on."""
    training: DpoTrainingSpec = Field(default_factory=DpoTrainingSpec)
    """How it is trained."""


class KtoSpec(AlignmentTaskSpec, FederableTaskSpec):
    """`taskType: kto`: trains a model on answers of which each is good or bad."""

    smallest_batch = 2

    task_type: Literal["kto"] = Field(default="kto", alias="taskType")
    """`kto`"""
    data: JudgedData
    """What it is trained on."""
    training: KtoTrainingSpec = Field(default_factory=KtoTrainingSpec)
    """How it is trained."""


class OrpoSpec(AlignmentTaskSpec, FederableTaskSpec):
    """`taskType: orpo`: trains a model on the better answer and away from the worse one, without a reference."""

    task_type: Literal["orpo"] = Field(default="orpo", alias="taskType")
    """`orpo`"""
    data: PairData
    """What it is trained on."""
    training: OrpoTrainingSpec = Field(default_factory=OrpoTrainingSpec)
    """How it is trained."""


class RewardSpec(AlignmentTaskSpec):
    """`taskType: reward`: trains a sequence classifier that scores the better of two answers higher."""

    task_type: Literal["reward"] = Field(default="reward", alias="taskType")
    """`reward`"""
    data: PairData
    """What it is trained on."""
    training: RewardTrainingSpec = Field(default_factory=RewardTrainingSpec)
    """How it is trained."""


class RewardedTaskSpec(AlignmentTaskSpec):
    """What the kinds have that draw answers and reward them. There is no default reward."""

    data: AskedData
    """The prompts."""
    training: GroupTrainingSpec = Field(default_factory=GroupTrainingSpec)
    """How it is trained."""
    rewards: Annotated[tuple[Reward, ...], Field(max_length=20)] = ()
    """What rewards an answer by rules; several are added."""
    reward_model: RewardModelSpec | None = None
    """A sequence classifier that rewards answers, beside or instead of `rewards`."""
    generation: DrawingSpec = Field(default_factory=DrawingSpec)
    """How answers are drawn."""

    @property
    def requires_code(self) -> bool:
        """Whether a model's own code or a function is run."""
        judged = self.reward_model is not None and self.reward_model.trust_remote_code
        return self.model.trust_remote_code or judged or any(isinstance(one, FunctionReward) for one in self.rewards)

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        rewards, data = blocks.get("rewards"), blocks.get("data")
        if rewards == () and "reward_model" in blocks and blocks["reward_model"] is None:
            hint = "add rewards with exact_match, regex, format, length or function, or a reward_model"
            found.append(("", "has nothing that rewards an answer", hint))
        for index, one in enumerate(rewards or ()):
            if isinstance(one, ExactMatchReward) and isinstance(data, AskedData) and data.columns[1] is None:
                where = f"rewards.{index}.type"
                found.append((where, "needs a right answer in each row", "name data.reference_column"))
        return found


class GrpoSpec(RewardedTaskSpec):
    """`taskType: grpo`: trains a model by how its answers to a prompt compare with each other."""

    task_type: Literal["grpo"] = Field(default="grpo", alias="taskType")
    """`grpo`"""
    training: GrpoTrainingSpec = Field(default_factory=GrpoTrainingSpec)
    """How it is trained."""


class RlooSpec(RewardedTaskSpec):
    """`taskType: rloo`: trains a model by how each answer compares with the mean of the others to its prompt."""

    task_type: Literal["rloo"] = Field(default="rloo", alias="taskType")
    """`rloo`"""
    training: RlooTrainingSpec = Field(default_factory=RlooTrainingSpec)
    """How it is trained."""
