"""Chat: requests of users, and the turns and answer chunks exchanged between server and worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from tunefleet.schemas.base import Body, Message

# Name of the base model in a request.
BASE: Final = "base"
# Name of the fine-tuned model in a request.
TUNED: Final = "tuned"

Finish = Literal["stop", "length", "abort"]
_OF_MESSAGES: Final[dict[str, tuple[str, tuple[Any, ...]]]] = {
    "tool_calls": ("tools are not supported in a chat", ()),
    "function_call": ("functions are not supported in a chat", ()),
    "refusal": ("refusals are not supported in a chat", ("",)),
    "audio": ("audio is not supported in a chat", ()),
    "annotations": ("annotations are not supported in a chat", ()),
}
_IGNORED: Final = (
    "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls",
)  # fmt: skip
_OF_REQUESTS: Final[dict[str, tuple[str, tuple[Any, ...]]]] = {
    "tools": ("tools are not supported in a chat", ()),
    "tool_choice": ("tools are not supported in a chat", ("none", "auto")),
    "functions": ("functions are not supported in a chat", ()),
    "function_call": ("functions are not supported in a chat", ("none", "auto")),
    "logprobs": ("log probabilities are not supported in a chat", (False,)),
    "top_logprobs": ("log probabilities are not supported in a chat", (0,)),
    "logit_bias": ("logit biases are not supported in a chat", ()),
    "modalities": ("only text output is supported in a chat", (["text"],)),
    "audio": ("only text output is supported in a chat", ()),
}


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _in_text(value: Any) -> Any:
    """Join the parts of a content list."""
    if not isinstance(value, list):
        return value
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise ValueError(f"parts of type {kind!r} are not supported: use parts of type 'text'")
    return "\n".join(part["text"] for part in value)


class _OpenAIBody(Body):
    """A body in OpenAI's format, whose clients send null for unset fields."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value


def _refuse(value: Any, field: str, same: Mapping[str, tuple[str, tuple[Any, ...]]]) -> None:
    """Accept an unsupported field only with a value that disables it.

    Raises:
        ValueError: For any other value.
    """
    # Rejected rather than ignored: the answer would not be what the client requested.
    why, unwanted = same[field]
    if value not in ([], {}) and value not in unwanted:
        raise ValueError(why)


class ChatMessage(_OpenAIBody):
    """One message of a conversation.

    Args:
        role: `developer` means `system`.
        content: A string, or a list of parts of type `text`.
        name: Name of the speaker, for models whose chat template uses it.
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


class StreamOptions(_OpenAIBody):
    """`stream_options` of OpenAI clients; usage is always included."""

    include_usage: bool = True
    include_obfuscation: bool = False


class ResponseFormat(_OpenAIBody):
    """`response_format`: text, any JSON object, or JSON with a schema.

    Args:
        type: `json_schema` requires the field `json_schema`.
        json_schema: Contains the schema in `schema`.
    """

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: dict[str, Any] | None = None


class ChatRequest(_OpenAIBody):
    """Body of `POST /tasks/{id}/chat`, in the shape of OpenAI's chat completions.

    Defaults are taken from the task's spec.

    Args:
        messages: The conversation so far; its last message is answered.
        model: `base`, `tuned`, or the name of an adapter; default: the fine-tuned model, if there is one.
        temperature: Sampling temperature; 0 = greedy.
        max_tokens: Maximum number of tokens of the answer.
        stop: Stop strings, which end the answer.
        stream: Stream the answer (server-sent events), or send it in one response.
        response_format: Constrain the answer to a JSON Schema.
        user: Ignored, like `metadata`, `store` and similar fields.
        tools: Not supported, like `logprobs`.
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
    # Fields of OpenAI clients that do not affect the answer; accepted and ignored.
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    parallel_tool_calls: bool | None = None

    @field_validator(*_IGNORED)
    @classmethod
    def _ignored(cls, _: Any) -> None:
        return None

    # Unsupported fields; accepted only with values that disable them.
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
    """A model that a request may use, in OpenAI's format."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "tunefleet"


class ChatModels(Message):
    """Response of `GET …/v1/models`; empty until the session is ready."""

    object: Literal["list"] = "list"
    data: tuple[ChatModel, ...] = ()


class ChatUsage(Message):
    """Tokens of one turn."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class ChatView(Message):
    """Status of a chat.

    Args:
        status: Status of the task.
        ready: The model is loaded, and its worker is connected.
        models: Models that a request may use.
        waiting: Number of turns without a complete answer.
        error: The error, if it has failed.
    """

    task_id: str
    status: str
    ready: bool = False
    models: tuple[str, ...] = ()
    waiting: int = 0
    error: str | None = None


class ChatTurn(Message):
    """A turn to answer."""

    id: str
    request: ChatRequest


class ChatPoll(Message):
    """A worker's poll for turns.

    Args:
        ready: The model is loaded.
        models: Models that a request may use.
        held: Turns in progress.
        wait_s: How long the server may hold the poll until there is a turn, in seconds.
    """

    ready: bool = False
    models: tuple[Annotated[str, Field(max_length=500)], ...] = Field(default=(), max_length=1000)
    held: tuple[Annotated[str, Field(max_length=100)], ...] = Field(default=(), max_length=1000)
    wait_s: Annotated[float, Field(ge=0, le=60)] = 0.0


class ChatTurns(Message):
    """Response to a worker's poll.

    Args:
        gone: Turns that were abandoned by their clients.
        end: End the session.
    """

    turns: tuple[ChatTurn, ...] = ()
    gone: tuple[str, ...] = ()
    end: bool = False


class ChatPiece(Message):
    """The next chunk of an answer.

    Args:
        text: The new text.
        finish: Why the answer ended; null if it continues.
        usage: Token usage of a complete answer.
        error: Why there is no answer; also ends it.
        hint: How to fix it.
        waiting: Not a chunk, but the reason why none is available; empty when that has been resolved.
    """

    text: Annotated[str, Field(max_length=1_000_000)] = ""
    finish: Finish | None = None
    usage: ChatUsage | None = None
    error: Annotated[str, Field(max_length=10_000)] | None = None
    hint: Annotated[str, Field(max_length=10_000)] | None = None
    waiting: Annotated[str, Field(max_length=10_000)] | None = None


class ChatHeard(Message):
    """Whether the client of an answer has disconnected."""

    gone: bool
