"""What an engine is asked and what it gives. Standard library only: who asks may live in a process without torch."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict

Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class EngineAdapter:
    """A LoRA adapter that a model is loaded with.

    Args:
        name: How requests name it.
        path: Its folder.
        merge: Put into the weights at the loading, so that it counts for every request.
        scale: Its weight.
    """

    name: str
    path: str
    merge: bool = False
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class EngineModel:
    """What an engine has loaded; two that are equal answer alike, and one engine serves both.

    Args:
        path: Folder, or hub id, of weights and tokenizer.
        identifier: What the user calls it.
        revision: Of the hub.
        trust_remote_code: Run code that comes with the model.
        adapters: That requests may name, or that are merged into the weights.
        options: `model.vllm` or `model.transformers` of the spec, as JSON has it.
        stamp: Changes when the files behind `path` or an adapter do.
        engine: What computes.
    """

    path: str
    identifier: str
    revision: str | None = None
    trust_remote_code: bool = False
    adapters: tuple[EngineAdapter, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    stamp: str = ""
    engine: Literal["transformers", "vllm"] = "transformers"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are drawn; the names are those of `spec.inference`, which says what each means."""

    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int | None = None
    min_p: float = 0.0
    max_tokens: int = 512
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    seed: int | None = None
    n: int = 1
    skip_special_tokens: bool = True
    logprobs: int | None = None
    schema: str | None = None
    """JSON Schema that each answer must obey, as JSON text."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt.

    Args:
        key: Whatever tells requests of one call apart; given back with the answer.
        prompt: The whole text, a chat template applied already.
        sampling: How it is answered.
        adapter: Name of one of the model's adapters; the model alone by default.
        rendered: Whether a chat template has written the prompt: then it has all special tokens that it should have.
    """

    key: int
    prompt: str
    sampling: Sampling = Sampling()
    adapter: str | None = None
    rendered: bool = False


class TokenLogprob(TypedDict):
    """How probable a token was at its place."""

    token: str
    """Its text; several tokens may have the same."""
    id: int
    """Its number in the model's vocabulary."""
    logprob: float
    """Logarithm of its probability, before anything that was asked for changes it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to a prompt.

    Args:
        text: The answer.
        finish_reason: `stop` (end token or stop text), `length` (longest answer reached), `abort` (what was asked for
            leaves no token that can follow).
        tokens: How many were drawn.
        logprobs: For each place, the likeliest tokens and the drawn one, the likeliest first, if they were asked for.
        prompt_tokens: Length of the prompt; told with an answer that is streamed.
    """

    text: str
    finish_reason: Finish
    tokens: int
    logprobs: list[list[TokenLogprob]] | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answers to one request.

    Args:
        key: Of the request.
        choices: As many as `Sampling.n`.
        prompt_tokens: Length of the prompt.
    """

    key: int
    choices: tuple[Choice, ...]
    prompt_tokens: int


class Engine(Protocol):
    """A model that is loaded and answers."""

    @property
    def name(self) -> str:
        """`transformers` or `vllm`."""
        ...

    def render(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """Apply the model's chat template, with the prompt of an answer behind; without a template, the texts in lines.

        Args:
            messages: `role` and `content`.
            kwargs: Passed on to the template.
        """
        ...

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        ...

    def generate(self, requests: Sequence[Request]) -> Iterator[Answer]:
        """Answer requests; gives each answer as soon as it is there, in any order.

        Raises:
            InputError: If a prompt leaves no room for an answer, or an option cannot be heeded; names the key.
        """
        ...

    def stream(self, request: Request) -> Generator[str, None, Choice]:
        """Answer one request piece by piece; what the generator returns at its end is the whole answer."""
        ...

    def close(self) -> None:
        """Give memory and devices back."""
        ...
