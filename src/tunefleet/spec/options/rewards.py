"""`spec.rewards`, `spec.generation` and `spec.training` of `grpo` and `rloo`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from tunefleet.spec.base import Block, NotBool, PositiveFloat, PositiveInt, Text, camel_case, wrong
from tunefleet.spec.options.generation import TokenCount, TopP
from tunefleet.spec.options.preference import PreferenceTrainingSpec
from tunefleet.spec.options.training_options import Check


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise wrong(f"is not a regular expression: {error}") from error
    return value


def _function(value: str) -> str:
    module, _, name = value.partition(":")
    # Only dotted names: the string is imported on the worker.
    if not all(part.isidentifier() for part in [*module.split("."), name]):
        raise wrong("is not a function", "use module:function")
    return value


Pattern = Annotated[Text, AfterValidator(_pattern)]
Weight = Annotated[float, Field(ge=-1000, le=1000), NotBool]


class ExactMatchReward(Block):
    """`rewards[]` with `type: exact_match`: 1 if the final answer equals the reference's, else 0."""

    type: Literal["exact_match"]
    """`exact_match`"""
    weight: Weight = 1.0
    """Weight of the reward."""
    pattern: Pattern | None = None
    """Regular expression whose first group is the final answer; default: the text after the first `####` or the last
    `A:`, else the last number."""


class RegexReward(Block):
    """`rewards[]` with `type: regex`: 1 if the answer matches, else 0."""

    type: Literal["regex"]
    """`regex`"""
    weight: Weight = 1.0
    """Weight of the reward."""
    pattern: Pattern
    """Regular expression; `.` also matches line breaks."""
    whole: bool = False
    """Match the full answer; default: a part of it is enough."""


class FormatReward(Block):
    """`rewards[]` with `type: format`: 1 if the answer consists of these sections in this order, else 0."""

    type: Literal["format"]
    """`format`"""
    weight: Weight = 1.0
    """Weight of the reward."""
    tags: Annotated[tuple[Annotated[str, Field(pattern=r"^[A-Za-z][\w-]*$")], ...], Field(min_length=1)] = (
        "think",
        "answer",
    )
    """Names of the sections: `<think>…</think>`, then `<answer>…</answer>`."""


class LengthReward(Block):
    """`rewards[]` with `type: length`: 1 within a length range, decreasing to 0 outside it."""

    type: Literal["length"]
    """`length`"""
    weight: Weight = 1.0
    """Weight of the reward."""
    min_tokens: Annotated[int, Field(ge=0), NotBool] = 0
    """Shorter answers get a proportional reward."""
    max_tokens: PositiveInt
    """Longer answers lose reward in proportion; at twice the length it is 0."""

    @model_validator(mode="after")
    def _ordered(self) -> LengthReward:
        if self.min_tokens > self.max_tokens:
            raise wrong(f"must be at most max_tokens, which is {self.max_tokens}", at="min_tokens")
        return self


class FunctionReward(Block):
    """`rewards[]` with `type: function`: a Python function; requires a worker started with `--allow-code`."""

    type: Literal["function"]
    """`function`"""
    weight: Weight = 1.0
    """Weight of the reward."""
    function: Annotated[Text, AfterValidator(_function)]
    """`module:function`; called with `prompts`, `completions` and `references`, returns one number per completion."""


_KINDS = {
    "exact_match": ExactMatchReward,
    "regex": RegexReward,
    "format": FormatReward,
    "length": LengthReward,
    "function": FunctionReward,
}


def _kind(value: Any) -> str:
    return str(value.get("type") if isinstance(value, dict) else getattr(value, "type", None))


def _known(value: Any) -> Any:
    # Reported here for a readable message: pydantic's own one is about discriminators and tags.
    if isinstance(value, dict) and value.get("type") not in _KINDS:
        raise wrong("is not a known reward type", f"write one of {', '.join(_KINDS)}", at="type")
    return value


Reward = Annotated[
    Annotated[ExactMatchReward, Tag("exact_match")]
    | Annotated[RegexReward, Tag("regex")]
    | Annotated[FormatReward, Tag("format")]
    | Annotated[LengthReward, Tag("length")]
    | Annotated[FunctionReward, Tag("function")],
    Discriminator(_kind),
    BeforeValidator(_known),
]


class DrawingSpec(Block):
    """`spec.generation` of `grpo` and `rloo`: sampling parameters. Keys may also be written in camel case."""

    max_new_tokens: TokenCount = 256
    """Maximum number of tokens per answer."""
    temperature: Annotated[float, Field(gt=0, le=100), NotBool] = 1.0
    """Sampling temperature."""
    top_p: TopP = 1.0
    """Nucleus sampling: sample from the most likely tokens whose probabilities add up to this value."""
    top_k: Annotated[int, Field(ge=-1, le=1_000_000), NotBool] = 0
    """Sample from this many most likely tokens; -1 or 0 = all."""
    min_p: Annotated[float, Field(ge=0, le=1), NotBool] | None = None
    """Minimum probability of a token, relative to the most likely one."""
    repetition_penalty: PositiveFloat = 1.0
    """Penalty on tokens of the prompt and the answer; values above 1 discourage repetition."""

    @model_validator(mode="before")
    @classmethod
    def _spellings(cls, data: Any) -> Any:
        return camel_case(data, cls)


class GroupTrainingSpec(PreferenceTrainingSpec):
    """The keys of `spec.training` of `grpo` and `rloo`, which sample and reward groups of answers."""

    batch_size: PositiveInt = 8
    """Answers per device and forward pass."""
    learning_rate: PositiveFloat = 1e-6
    """Peak learning rate."""
    max_seq_length: PositiveInt = 512
    """Maximum number of prompt tokens; rows with longer prompts are skipped."""
    num_generations: Annotated[int, Field(ge=2, le=1024), NotBool] = 8
    """Group size: answers per prompt, which are compared with each other."""
    num_iterations: PositiveInt = 1
    """Training iterations on sampled answers before new ones are sampled."""
    epsilon: PositiveFloat = 0.2
    """Clip range of the probability ratio."""
    mask_truncated_completions: bool = False
    """Mask answers that were truncated at `max_new_tokens`."""

    def _checks(self) -> tuple[Check, ...]:
        # Advantages are computed within a group, so a step must contain complete groups.
        answers = self.batch_size * self.gradient_accumulation_steps
        message = f"must divide the {answers} answers of a step (batch_size × gradient_accumulation_steps)"
        return (
            *super()._checks(),
            (answers % self.num_generations > 0, "num_generations", message, None),
            (
                bool(self.eval_batch_size and self.eval_batch_size % self.num_generations),
                "eval_batch_size",
                f"must be a multiple of num_generations, which is {self.num_generations}",
                None,
            ),
        )


class GrpoTrainingSpec(GroupTrainingSpec):
    """`spec.training` of a `grpo` task."""

    beta: Annotated[float, Field(ge=0, le=100), NotBool] = 0.0
    """Weight of the KL divergence from the reference model; 0 needs no reference model."""
    loss_type: Literal["grpo", "dapo", "dr_grpo", "bnpo"] = "dapo"
    """Loss variant: how the loss is averaged over tokens and answers."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Scaling of advantages: by the standard deviation of the group, of the batch, or none."""
    epsilon_high: PositiveFloat | None = None
    """Upper clip range; default: `epsilon`."""


class RlooTrainingSpec(GroupTrainingSpec):
    """`spec.training` of an `rloo` task."""

    num_generations: Annotated[int, Field(ge=2, le=1024), NotBool] = 2
    """Group size: answers per prompt, which are compared with each other."""
    beta: Annotated[float, Field(ge=0, le=100), NotBool] = 0.05
    """Weight of the KL divergence from the reference model, as part of the reward."""
    normalize_advantages: bool = False
    """Divide advantages by their standard deviation in the batch."""
