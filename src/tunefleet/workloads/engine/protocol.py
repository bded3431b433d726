"""What an engine is asked and what it gives. Standard library only: who asks may live in a process without torch."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict

Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class EngineAdapter:
    """A LoRA adapter that a model is loaded with."""

    name: str
    path: str
    merge: bool = False
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class EngineModel:
    """What an engine has loaded; two that are equal answer alike, and one engine serves both."""

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
    """One prompt."""

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
        finish_reason: `stop` (end token or stop text), `length` (longest answer reached), `abort` (what was asked for
            leaves no token that can follow).
    """

    text: str
    finish_reason: Finish
    tokens: int
    logprobs: list[list[TokenLogprob]] | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answers to one request."""

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
        """Apply the model's chat template with a generation prompt; without a template, the texts in lines."""
        ...

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        ...

    def generate(self, requests: Sequence[Request]) -> Iterator[Answer]:
        """Answer requests; gives each answer as soon as it is there, in any order."""
        ...

    def stream(self, request: Request) -> Generator[str, None, Choice]:
        """Answer one request piece by piece; what the generator returns at its end is the whole answer."""
        ...

    def close(self) -> None:
        """Give memory and devices back."""
        ...
