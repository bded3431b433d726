"""What rewards the answers of `grpo` and `rloo`, how these are drawn, and how is trained on them."""

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
    if not all(part.isidentifier() for part in [*module.split("."), name]):
        raise wrong("is not a function", "write module:function")
    return value


Pattern = Annotated[Text, AfterValidator(_pattern)]
Weight = Annotated[float, Field(ge=-1000, le=1000), NotBool]


class ExactMatchReward(Block):
    """`rewards[]` with `type: exact_match`: 1 if the final answer is that of the reference, else 0."""

    type: Literal["exact_match"]
    """`exact_match`"""
    weight: Weight = 1.0
    """The reward is multiplied by this."""
    pattern: Pattern | None = None
    """Finds the final answer in a text, in its first group; by default what stands behind the first `####` or the last
    `A:`, else the last number."""


class RegexReward(Block):
    """`rewards[]` with `type: regex`: 1 if the answer matches, else 0."""

    type: Literal["regex"]
    """`regex`"""
    weight: Weight = 1.0
    """The reward is multiplied by this."""
    pattern: Pattern
    """A regular expression; `.` matches line breaks, too."""
    whole: bool = False
    """The whole answer must match; by default a part of it."""


class FormatReward(Block):
    """`rewards[]` with `type: format`: 1 if the answer consists of these sections in this order, else 0."""

    type: Literal["format"]
    """`format`"""
    weight: Weight = 1.0
    """The reward is multiplied by this."""
    tags: Annotated[tuple[Annotated[str, Field(pattern=r"^[A-Za-z][\w-]*$")], ...], Field(min_length=1)] = (
        "think",
        "answer",
    )
    """Names of the sections: `<think>…</think>`, then `<answer>…</answer>`."""


class LengthReward(Block):
    """`rewards[]` with `type: length`: 1 between two lengths; less the further away, down to 0."""

    type: Literal["length"]
    """`length`"""
    weight: Weight = 1.0
    """The reward is multiplied by this."""
    min_tokens: Annotated[int, Field(ge=0), NotBool] = 0
    """Shorter answers get their share of it."""
    max_tokens: PositiveInt
    """Longer ones lose in proportion; twice as long gets 0."""

    @model_validator(mode="after")
    def _ordered(self) -> LengthReward:
        if self.min_tokens > self.max_tokens:
            raise wrong(f"must be at most max_tokens, which is {self.max_tokens}", at="min_tokens")
        return self


class FunctionReward(Block):
    """`rewards[]` with `type: function`: a Python function of the worker; needs one that runs with `--allow-code`."""

    type: Literal["function"]
    """`function`"""
    weight: Weight = 1.0
    """The reward is multiplied by this."""
    function: Annotated[Text, AfterValidator(_function)]
    """`module:function`; called with `prompts`, `completions` and `references`, gives a number for each."""


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
    if isinstance(value, dict) and value.get("type") not in _KINDS:
        raise wrong("is none of the rewards", f"write {', '.join(_KINDS)}", at="type")
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
    """`spec.generation` of `grpo` and `rloo`: how answers are drawn. Keys may be written in camel case, too."""

    max_new_tokens: TokenCount = 256
    """Longest answer, in tokens."""
    temperature: Annotated[float, Field(gt=0, le=100), NotBool] = 1.0
    """How freely is drawn."""
    top_p: TopP = 1.0
    """Draw among the likeliest tokens that together have this probability."""
    top_k: Annotated[int, Field(ge=-1, le=1_000_000), NotBool] = 0
    """Draw among so many tokens; -1 or 0 for all."""
    min_p: Annotated[float, Field(ge=0, le=1), NotBool] | None = None
    """Leave out tokens that are less probable than this part of the likeliest one."""
    repetition_penalty: PositiveFloat = 1.0
    """Against tokens of prompt and answer; above 1 discourages them."""

    @model_validator(mode="before")
    @classmethod
    def _spellings(cls, data: Any) -> Any:
        return camel_case(data, cls)


class GroupTrainingSpec(PreferenceTrainingSpec):
    """The keys of `spec.training` of the trainings that draw several answers to a prompt and reward them."""

    batch_size: PositiveInt = 8
    """Answers a device and forward pass."""
    learning_rate: PositiveFloat = 1e-6
    """Highest learning rate."""
    max_seq_length: PositiveInt = 512
    """Longest prompt, in tokens; rows with a longer one are left out."""
    num_generations: Annotated[int, Field(ge=2, le=1024), NotBool] = 8
    """Answers to each prompt, which are compared with each other."""
    num_iterations: PositiveInt = 1
    """How often drawn answers are trained on before new ones are drawn."""
    epsilon: PositiveFloat = 0.2
    """Clips how far one step moves the probability of an answer."""
    mask_truncated_completions: bool = False
    """Learn nothing from answers that did not end."""

    def _checks(self) -> tuple[Check, ...]:
        answers = self.batch_size * self.gradient_accumulation_steps
        message = f"must divide the answers of a step, which are {answers} (batch_size × gradient_accumulation_steps)"
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
    """Weight of the divergence from the model that it started from; 0 needs no reference."""
    loss_type: Literal["grpo", "dapo", "dr_grpo", "bnpo"] = "dapo"
    """How the loss is averaged over tokens and answers."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """What an advantage is divided by: the deviation of its group, of the batch, or nothing."""
    epsilon_high: PositiveFloat | None = None
    """The upper clip, if it differs from `epsilon`."""


class RlooTrainingSpec(GroupTrainingSpec):
    """`spec.training` of an `rloo` task."""

    num_generations: Annotated[int, Field(ge=2, le=1024), NotBool] = 2
    """Answers to each prompt, which are compared with each other."""
    beta: Annotated[float, Field(ge=0, le=100), NotBool] = 0.05
    """Weight of the divergence from the model that it started from, as a part of the reward."""
    normalize_advantages: bool = False
    """Divide advantages by their deviation in the batch."""
