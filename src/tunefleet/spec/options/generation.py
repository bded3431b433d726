"""`spec.inference` and `spec.generation`: sampling parameters."""

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
# A sanity limit; the model's own context is far below it.
_MAX_TOKENS: Final = 10_000_000
TokenCount = Annotated[int, Field(ge=1, le=_MAX_TOKENS), NotBool]


class InferenceSpec(Block):
    """`spec.inference`: sampling parameters. Keys may also be written in camel case (`systemPrompt`)."""

    system_prompt: str | None = None
    """System prompt, put before each prompt."""
    temperature: Temperature = 0.7
    """Sampling temperature; 0 = greedy."""
    top_p: TopP = 0.95
    """Nucleus sampling: sample from the most likely tokens whose probabilities add up to this value."""
    top_k: Annotated[int, Field(ge=-1), In64Bits, NotBool] | None = None
    """Sample from this many most likely tokens; -1 or 0 = all. Default: all with vLLM, 50 with Transformers."""
    min_p: Annotated[float, Field(ge=0, le=1), NotBool] = 0.0
    """Minimum probability of a token, relative to the most likely one."""
    max_tokens: TokenCount | None = None
    """Maximum number of tokens per answer; default: 512."""
    max_new_tokens: TokenCount | None = None
    """Alias of `max_tokens`."""
    min_tokens: NaturalInt = 0
    """Minimum number of tokens per answer."""
    presence_penalty: Penalty = 0.0
    """Penalty on tokens that have already appeared."""
    frequency_penalty: Penalty = 0.0
    """Penalty on tokens in proportion to how often they have appeared."""
    repetition_penalty: PositiveFloat | None = None
    """Penalty on tokens of the prompt and the answer; values above 1 discourage repetition."""
    stop: Stops = ()
    """Stop strings, which end an answer."""
    stop_token_ids: tuple[NaturalInt, ...] = ()
    """Token ids that end an answer."""
    bad_words: Stops = ()
    """Words that are never generated."""
    do_sample: bool | None = None
    """`false` = greedy decoding."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), NotBool] | None = None
    """Random seed of the sampling."""
    n: Annotated[int, Field(ge=1, le=128), NotBool] = 1
    """Number of answers per prompt."""
    skip_special_tokens: bool = True
    """Omit special tokens from the text."""
    logprobs: Annotated[int, Field(ge=0, le=100), NotBool] | None = None
    """Return the log probabilities of this many most likely tokens at each position."""
    chat_template: bool | None = None
    """Apply the model's chat template to prompts; default: on if the model has one. `false`: plain text, as in
    training on prompt and response columns."""
    chat_template_kwargs: FreeMapping | None = None
    """Extra arguments of the chat template."""
    templates: (
        Annotated[
            tuple[AnswerField, ...] | FreeMapping,
            BeforeValidator(answer_templates),
            WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "object"}]}),
        ]
        | None
    ) = None
    """Structured output: a list of fields (`name`, `type`, `min`, `max`, `candidates`), or a JSON Schema."""

    @model_validator(mode="before")
    @classmethod
    def _spellings(cls, data: Any) -> Any:
        return camel_case(data, cls)

    @model_validator(mode="after")
    def _consistent(self) -> InferenceSpec:
        faults: Faults = []
        leave = "remove one of them"
        if self.max_tokens is not None and self.max_new_tokens is not None:
            faults.append(("max_new_tokens", "is an alias of max_tokens", leave))
        # Such a request could never produce a valid answer.
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
        """The maximum number of tokens per answer, from either spelling."""
        return self.max_tokens or self.max_new_tokens or 512

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of the answers, from either form of `templates`."""
        if self.templates is None or isinstance(self.templates, dict):
            return self.templates
        return object_schema(self.templates)


class GenerationSpec(Block):
    """`spec.generation`: sampling parameters of a PPO task. Keys may also be written in camel case."""

    max_new_tokens: TokenCount | None = None
    """Maximum number of tokens per answer; default: `training.max_seq_length` if set, else 64."""
    temperature: Annotated[float, Field(gt=0, le=100), NotBool] | None = None
    """Sampling temperature; default: `training.temperature`."""
    top_p: TopP | None = None
    """Nucleus sampling: sample from the most likely tokens whose probabilities add up to this value."""
    top_k: Annotated[int, Field(ge=-1), In64Bits, NotBool] | None = None
    """Sample from this many most likely tokens; -1 or 0 = all."""
    stop: Stops = ()
    """Stop strings, which end an answer."""
    do_sample: bool = True
    """`false` = greedy decoding."""

    @model_validator(mode="before")
    @classmethod
    def _spellings(cls, data: Any) -> Any:
        return camel_case(data, cls)


class RewardModelSpec(Block):
    """`spec.reward_model`: sequence classifier that scores the answers."""

    identifier: ModelName | None = None
    """Hub id, or a local folder or archive, which is uploaded with the workflow."""
    task_id: Text | None = Field(default=None, alias="taskId")
    """Alternative: id of the `reward` task that trains it; counts as a dependency, as in `dependsOn`."""
    type: Literal["classification", "sentiment"] = "classification"
    """`classification`: the score is the reward; `sentiment`: the positive minus the negative score."""
    scale: Annotated[float, Field(ge=-1000, le=1000), NotBool] = 1.0
    """Factor of the reward."""
    max_length: Annotated[PositiveInt, Field(le=1_000_000)] = 512
    """Maximum number of tokens per text; longer texts are truncated."""
    positive_label: Text | None = None
    """Positive label; default: detected by name."""
    negative_label: Text | None = None
    """Negative label; default: detected by name."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the model; requires a worker started with `--allow-code`."""

    @model_validator(mode="after")
    def _one_place(self) -> RewardModelSpec:
        # Exactly one source: neither and both are errors.
        if (self.identifier is None) == (self.task_id is None):
            raise wrong("needs exactly one of identifier and taskId")
        return self

    @property
    def name(self) -> str:
        """Display name."""
        return self.identifier or f"of task {self.task_id}"
