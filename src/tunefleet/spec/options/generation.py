"""`spec.inference` and `spec.generation`: how answers are drawn."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from tunefleet.spec.base import (
    Block,
    FreeMapping,
    In64Bits,
    ModelName,
    NaturalInt,
    NotBool,
    PositiveFloat,
    PositiveInt,
    Text,
    as_list,
    camel_case,
    many_wrong,
    wrong,
)
from tunefleet.spec.options.answer_schema import AnswerField, answer_templates, object_schema

Faults = list[tuple[str, str, str | None]]
Temperature = Annotated[float, Field(ge=0, le=100), NotBool]
TopP = Annotated[float, Field(gt=0, le=1), NotBool]
Penalty = Annotated[float, Field(ge=-2, le=2), NotBool]
Stops = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(as_list)]
_MAX_TOKENS: Final = 10_000_000
TokenCount = Annotated[int, Field(ge=1, le=_MAX_TOKENS), NotBool]


class InferenceSpec(Block):
    """`spec.inference`: how answers are drawn. Keys may be written in camel case, too (`systemPrompt`)."""

    system_prompt: str | None = None
    """Stands before each prompt."""
    temperature: Temperature = 0.7
    """How freely is drawn; 0 always takes the likeliest token."""
    top_p: TopP = 0.95
    """Draw among the likeliest tokens that together have this probability."""
    top_k: Annotated[int, Field(ge=-1), In64Bits, NotBool] | None = None
    """Draw among so many tokens; -1 or 0 for all. By default all with vLLM, 50 with Transformers."""
    min_p: Annotated[float, Field(ge=0, le=1), NotBool] = 0.0
    """Leave out tokens that are less probable than this part of the likeliest one."""
    max_tokens: TokenCount | None = None
    """Longest answer, in tokens; 512 by default."""
    max_new_tokens: TokenCount | None = None
    """The same as `max_tokens`."""
    min_tokens: NaturalInt = 0
    """Shortest answer, in tokens."""
    presence_penalty: Penalty = 0.0
    """Against tokens that were there before."""
    frequency_penalty: Penalty = 0.0
    """The same, by how often they were there."""
    repetition_penalty: PositiveFloat | None = None
    """Against tokens of prompt and answer; above 1 discourages them."""
    stop: Stops = ()
    """Texts that end an answer."""
    stop_token_ids: tuple[NaturalInt, ...] = ()
    """Tokens that end an answer."""
    bad_words: Stops = ()
    """Words that are never drawn."""
    do_sample: bool | None = None
    """`false`: always take the likeliest token."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), NotBool] | None = None
    """Seed of the draw."""
    n: Annotated[int, Field(ge=1, le=128), NotBool] = 1
    """Answers for each prompt."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    logprobs: Annotated[int, Field(ge=0, le=100), NotBool] | None = None
    """Give the probabilities of so many tokens at each place."""
    chat_template: bool | None = None
    """Whether prompts are the user's turn in the model's chat template; by default if it has one. `false`: plain text,
    as a training on columns of prompts and responses has it."""
    chat_template_kwargs: FreeMapping | None = None
    """Passed on to the model's chat template."""
    templates: (
        Annotated[
            tuple[AnswerField, ...] | FreeMapping,
            BeforeValidator(answer_templates),
            WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "object"}]}),
        ]
        | None
    ) = None
    """Answers are JSON objects: a list of fields (`name`, `type`, `min`, `max`, `candidates`), or a JSON Schema."""

    @model_validator(mode="before")
    @classmethod
    def _spellings(cls, data: Any) -> Any:
        return camel_case(data, cls)

    @model_validator(mode="after")
    def _consistent(self) -> InferenceSpec:
        faults: Faults = []
        leave = "leave one of them out"
        if self.max_tokens is not None and self.max_new_tokens is not None:
            faults.append(("max_new_tokens", "means the same as max_tokens", leave))
        if self.min_tokens > self.longest:
            faults.append(("min_tokens", f"must be at most max_tokens, which is {self.longest}", None))
        if self.do_sample is True and self.temperature == 0:
            faults.append(("do_sample", "contradicts temperature: 0", leave))
        if self.chat_template is False and self.chat_template_kwargs is not None:
            faults.append(("chat_template_kwargs", "has no effect with chat_template: false", leave))
        if faults:
            raise many_wrong(faults)
        return self

    @property
    def longest(self) -> int:
        """The longest answer, in tokens, wherever it was written."""
        return self.max_tokens or self.max_new_tokens or 512

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """The JSON Schema that each answer obeys, wherever it was written."""
        if self.templates is None or isinstance(self.templates, dict):
            return self.templates
        return object_schema(self.templates)


class GenerationSpec(Block):
    """`spec.generation`: how the answers of a PPO training are drawn. Keys may be written in camel case, too."""

    max_new_tokens: TokenCount | None = None
    """Longest answer, in tokens; by default `training.max_seq_length` if that is given, else 64."""
    temperature: Annotated[float, Field(gt=0, le=100), NotBool] | None = None
    """How freely is drawn; by default `training.temperature`."""
    top_p: TopP | None = None
    """Draw among the likeliest tokens that together have this probability."""
    top_k: Annotated[int, Field(ge=-1), In64Bits, NotBool] | None = None
    """Draw among so many tokens; -1 or 0 for all."""
    stop: Stops = ()
    """Texts that end an answer."""
    do_sample: bool = True
    """`false`: always take the likeliest token."""

    @model_validator(mode="before")
    @classmethod
    def _spellings(cls, data: Any) -> Any:
        return camel_case(data, cls)


class RewardModelSpec(Block):
    """`spec.reward_model`: what judges the answers of a training; a sequence classifier."""

    identifier: ModelName | None = None
    """Hub id, local folder or archive (it travels with the submit)."""
    task_id: Text | None = Field(default=None, alias="taskId")
    """Instead: id of the `reward` task that trains it. It is waited for as one in `dependsOn`."""
    type: Literal["classification", "sentiment"] = "classification"
    """`classification`: its score is the reward; `sentiment`: positive minus negative is."""
    scale: Annotated[float, Field(ge=-1000, le=1000), NotBool] = 1.0
    """The reward is multiplied by this."""
    max_length: Annotated[PositiveInt, Field(le=1_000_000)] = 512
    """Longer texts are cut to this many tokens."""
    positive_label: Text | None = None
    """The label that is good; by default found by its name."""
    negative_label: Text | None = None
    """The label that is bad; by default found by its name."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the model; needs a worker that was started with `--allow-code`."""

    @model_validator(mode="after")
    def _one_place(self) -> RewardModelSpec:
        if (self.identifier is None) == (self.task_id is None):
            raise wrong("needs exactly one of identifier and taskId")
        return self

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self.identifier or f"of task {self.task_id}"
