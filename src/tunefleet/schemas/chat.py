"""A chat: what a person asks, and how turns and pieces of answers travel between server and worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from tunefleet.schemas.base import Body, Message

# Names the model as it was, in a request.
BASE: Final = "base"
# Names the model with what was trained.
TUNED: Final = "tuned"

Finish = Literal["stop", "length", "abort"]


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _in_text(value: Any) -> Any:
    """Join the parts of a content that is a list."""
    if not isinstance(value, list):
        return value
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise ValueError(f"a part of type {kind!r} cannot be answered: a chat takes parts of type 'text'")
    return "\n".join(part["text"] for part in value)


class _Openly(Body):
    """A body as clients of OpenAI's protocol write it: what they do not want is null, or says so."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value


def _refuse(value: Any, field: str, same: Mapping[str, tuple[str, tuple[Any, ...]]]) -> None:
    """Take of a field only that it is not wanted: an answer would not be what was asked for.

    Raises:
        ValueError: If it says anything else.
    """
    why, unwanted = same[field]
    if value not in ([], {}) and value not in unwanted:
        raise ValueError(why)


_OF_MESSAGES: Final[dict[str, tuple[str, tuple[Any, ...]]]] = {
    "tool_calls": ("a chat calls no tools", ()),
    "function_call": ("a chat calls no functions", ()),
    "refusal": ("a chat has no refusals", ("",)),
    "audio": ("a chat is of texts", ()),
    "annotations": ("a chat has no annotations", ()),
}
_FORGOTTEN: Final = (
    "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls",
)  # fmt: skip
_OF_REQUESTS: Final[dict[str, tuple[str, tuple[Any, ...]]]] = {
    "tools": ("a chat calls no tools", ()),
    "tool_choice": ("a chat calls no tools", ("none", "auto")),
    "functions": ("a chat calls no functions", ()),
    "function_call": ("a chat calls no functions", ("none", "auto")),
    "logprobs": ("a chat gives no probabilities", (False,)),
    "top_logprobs": ("a chat gives no probabilities", (0,)),
    "logit_bias": ("a chat takes no biases", ()),
    "modalities": ("a chat answers in text", (["text"],)),
    "audio": ("a chat answers in text", ()),
}


class ChatMessage(_Openly):
    """One message of a conversation.

    Args:
        role: `developer` means `system`.
        content: A text, or a list of parts of type `text`.
        name: Who speaks, for models whose chat template heeds it.
    """

    role: Annotated[
        Literal["system", "user", "assistant"],
        BeforeValidator(lambda role: "system" if role == "developer" else role),
        WithJsonSchema({"type": "string", "enum": ["system", "developer", "user", "assistant"]}),
    ]
    content: Annotated[
        str,
        Field(max_length=1_000_000),
        BeforeValidator(_in_text),
        WithJsonSchema(
            {"anyOf": [{"type": "string", "maxLength": 1_000_000}, {"type": "array", "items": {"type": "object"}}]}
        ),
    ]
    name: Annotated[str, Field(max_length=500)] | None = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None
    audio: Any = None
    annotations: Any = None

    @field_validator(*_OF_MESSAGES)
    @classmethod
    def _unwanted(cls, value: Any, info: ValidationInfo) -> None:
        _refuse(value, str(info.field_name), _OF_MESSAGES)


class StreamOptions(_Openly):
    """`stream_options` of OpenAI's clients; the figures are always told."""

    include_usage: bool = True
    include_obfuscation: bool = False


class ResponseFormat(_Openly):
    """`response_format`: text, any JSON object, or JSON by a schema.

    Args:
        type: `json_schema` needs `json_schema`.
        json_schema: With the schema under `schema`.
    """

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: dict[str, Any] | None = None


class ChatRequest(_Openly):
    """Body of `POST /tasks/{id}/chat`, in the shape of OpenAI's chat completions.

    What is left out is as the task's spec has it.

    Args:
        messages: The conversation so far; its last message is answered.
        model: `base`, `tuned`, or the name of an adapter; by default the tuned one, if there is one.
        temperature: How freely is drawn; 0 always takes the likeliest token.
        max_tokens: Longest answer, in tokens.
        stop: Texts that end the answer.
        stream: Answer piece by piece (server-sent events), or at once.
        response_format: Hold the answer to a JSON Schema.
        user: Whatever the client wants to remember; so are `metadata`, `store` and the like.
        tools: None: a chat calls no tools, and gives no `logprobs`.
    """

    messages: tuple[ChatMessage, ...] = Field(min_length=1, max_length=1000)
    model: Annotated[str, Field(max_length=500)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    stop: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...],
        BeforeValidator(_as_tuple),
        Field(max_length=16),
    ] = ()
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    n: Literal[1] = 1
    user: Annotated[str, Field(max_length=500)] | None = None
    # What clients write that changes no answer; it is read and forgotten.
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    parallel_tool_calls: bool | None = None

    @field_validator(*_FORGOTTEN)
    @classmethod
    def _forgotten(cls, _: Any) -> None:
        return None

    # What may only say that it is not wanted: an answer would not be what was asked for.
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    logit_bias: Any = None
    modalities: Any = None
    audio: Any = None

    @field_validator(*_OF_REQUESTS)
    @classmethod
    def _unwanted(cls, value: Any, info: ValidationInfo) -> None:
        _refuse(value, str(info.field_name), _OF_REQUESTS)


class ChatModel(Message):
    """A model that a request may name, as OpenAI's protocol lists it."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "tunefleet"


class ChatModels(Message):
    """What `GET …/v1/models` answers; nothing is listed before the session is ready."""

    object: Literal["list"] = "list"
    data: tuple[ChatModel, ...] = ()


class ChatUsage(Message):
    """Tokens of one turn."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class ChatView(Message):
    """Where a chat stands.

    Args:
        status: The task's.
        ready: The model is loaded, and its worker listens.
        models: What a request may name.
        waiting: Turns that have no whole answer yet.
        error: Why it has ended, if it has failed.
    """

    task_id: str
    status: str
    ready: bool = False
    models: tuple[str, ...] = ()
    waiting: int = 0
    error: str | None = None


class ChatTurn(Message):
    """A turn that is to be answered."""

    id: str
    request: ChatRequest


class ChatPoll(Message):
    """What a worker says as it asks for turns.

    Args:
        ready: The model is loaded.
        models: What a request may name.
        held: Turns that it is answering.
        wait_s: How long the answer may be held until there is a turn.
    """

    ready: bool = False
    models: tuple[Annotated[str, Field(max_length=500)], ...] = Field(default=(), max_length=1000)
    held: tuple[Annotated[str, Field(max_length=100)], ...] = Field(default=(), max_length=1000)
    wait_s: Annotated[float, Field(ge=0, le=60)] = 0.0


class ChatTurns(Message):
    """What a worker is to do.

    Args:
        gone: Turns that nobody waits for any more.
        end: The session is to end.
    """

    turns: tuple[ChatTurn, ...] = ()
    gone: tuple[str, ...] = ()
    end: bool = False


class ChatPiece(Message):
    """The next piece of an answer.

    Args:
        text: The text that is new.
        finish: Why the answer has ended; it goes on if that is null.
        usage: Of a whole answer.
        error: Why there is no answer; it has ended, too.
        hint: The way out.
        waiting: It is no piece but says why none comes; empty: that is over.
    """

    text: Annotated[str, Field(max_length=1_000_000)] = ""
    finish: Finish | None = None
    usage: ChatUsage | None = None
    error: Annotated[str, Field(max_length=10_000)] | None = None
    hint: Annotated[str, Field(max_length=10_000)] | None = None
    waiting: Annotated[str, Field(max_length=10_000)] | None = None


class ChatHeard(Message):
    """Whether anybody listens to an answer."""

    gone: bool
