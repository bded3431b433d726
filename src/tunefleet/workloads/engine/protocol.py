"""Types of requests and answers, and the protocol of engines. Standard library only: clients may run without torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypedDict

from tunefleet import errors
from tunefleet.errors import TunefleetError
from tunefleet.workloads.faults import RequestError

Finish = Literal["stop", "length", "abort"]
_FAILURES: Final = ("InputError", "DataError", "ModelError", "MachineError", "UnreachableError", "NotFoundError")


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


def to_line(message: Mapping[str, Any]) -> bytes:
    """Serialize a message."""
    # `surrogatepass`: prompts may contain lone surrogates, which strict UTF-8 would reject.
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def model_digest(model: EngineModel) -> str:
    """Return a digest that identifies a model with its options."""
    text = json.dumps(dataclasses.asdict(model), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def model_of(data: Mapping[str, Any]) -> EngineModel:
    """Parse a model serialized by `dataclasses.asdict`."""
    adapters = tuple(EngineAdapter(**each) for each in data["adapters"])
    return EngineModel(**{**data, "adapters": adapters})


def request_of(data: Mapping[str, Any]) -> Request:
    """Parse a request serialized by `dataclasses.asdict`."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in data["sampling"].items()}
    sampling = Sampling(**values)  # type: ignore[arg-type]
    return Request(data["key"], data["prompt"], sampling, data["adapter"], data["rendered"])


def choice_of(data: Mapping[str, Any]) -> Choice:
    """Parse a choice serialized by `dataclasses.asdict`."""
    return Choice(**data)


def answer_of(data: Mapping[str, Any]) -> Answer:
    """Parse an answer serialized by `dataclasses.asdict`."""
    return Answer(data["key"], tuple(choice_of(each) for each in data["choices"]), data["prompt_tokens"])


def failure_of(error: BaseException) -> dict[str, Any]:
    """Serialize an exception, to be raised again by the client."""
    if isinstance(error, RequestError):
        return {"class": "RequestError", "message": error.message, "hint": error.hint, "key": error.key}
    if isinstance(error, TunefleetError):
        names = [each.__name__ for each in type(error).__mro__ if each.__name__ in _FAILURES]
        return {"class": (names or ["InputError"])[0], "message": error.message, "hint": error.hint}
    memory = isinstance(error, MemoryError) or "out of memory" in str(error).lower()
    return {"class": "MemoryError" if memory else "RuntimeError", "message": f"{type(error).__name__}: {error}"}


def error_of(data: Mapping[str, Any]) -> Exception:
    """Return the exception that was raised in the engine."""
    name, message = data["class"], str(data["message"])
    if name == "RequestError":
        return RequestError(message, key=int(data["key"]), hint=data.get("hint"))
    if name in _FAILURES:
        found: TunefleetError = getattr(errors, name)(message, hint=data.get("hint"))
        return found
    return MemoryError(message) if name == "MemoryError" else RuntimeError(message)
