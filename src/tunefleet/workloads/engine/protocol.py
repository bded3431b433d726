"""Types of requests and answers, and the protocol of engines. Standard library only: clients may run without torch."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict

Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class EngineAdapter:
    """A LoRA adapter to load with a model."""

    name: str
    path: str
    merge: bool = False
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model with its adapters and options; clients with equal values share one engine."""

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
    """Sampling parameters; see `spec.inference` for their meaning."""

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
    """JSON Schema that each answer must match, as JSON text."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt."""

    key: int
    prompt: str
    sampling: Sampling = Sampling()
    adapter: str | None = None
    rendered: bool = False


class TokenLogprob(TypedDict):
    """The log probability of a token at its position."""

    token: str
    """The text of the token; several tokens may have the same text."""
    id: int
    """The token id."""
    logprob: float
    """The log probability before penalties and other sampling options."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to a prompt.

    Args:
        finish_reason: `stop` (end token or stop string), `length` (maximum length reached), `abort` (the request's
            constraints allow no further token).
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
    """A loaded model that answers requests."""

    @property
    def name(self) -> str:
        """`transformers` or `vllm`."""
        ...

    def render(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """Apply the chat template with a generation prompt; without a template, join the texts with newlines."""
        ...

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        ...

    def generate(self, requests: Sequence[Request]) -> Iterator[Answer]:
        """Answer requests; yields each answer as soon as it is ready, in any order."""
        ...

    def stream(self, request: Request) -> Generator[str, None, Choice]:
        """Stream the answer to one request; the generator's return value is the full answer."""
        ...

    def close(self) -> None:
        """Free memory and devices."""
        ...
