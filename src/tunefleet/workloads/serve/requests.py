"""Bodies of OpenAI's API that a chat does not have, and how they are answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from tunefleet.schemas.chat import ChatMessage, ChatPiece, ChatRequest, ChatUsage
from tunefleet.spec.options.generation import InferenceSpec
from tunefleet.workloads.chat.run import sampling
from tunefleet.workloads.engine.protocol import Request
from tunefleet.workloads.serve.models import ServedModels

_UNSUPPORTED: Final = ("suffix", "echo", "best_of", "logprobs")


class CompletionRequest(ChatRequest):
    """A request for the continuation of a text; options are those of a chat."""

    messages: tuple[ChatMessage, ...] = Field(default=(), max_length=0)
    prompt: Annotated[str, Field(min_length=1, max_length=1_000_000)]

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name in _UNSUPPORTED:
            if value.get(name) not in (None, False, 1 if name == "best_of" else None):
                raise ValueError(f"{name} is not supported")
        rest = {name: each for name, each in value.items() if name not in _UNSUPPORTED}
        prompt = rest.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1:
            rest["prompt"] = prompt[0]
        return rest


def complete(models: ServedModels, inference: InferenceSpec, request: CompletionRequest) -> Iterator[ChatPiece]:
    """Yield the continuation of a text piece by piece; the last one holds the finish reason."""
    engine, adapter = models.of(request.model)
    pieces = engine.stream(Request(0, request.prompt, sampling(inference, request), adapter))
    try:
        while True:
            yield ChatPiece(text=next(pieces))
    except StopIteration as end:
        choice = end.value
        usage = ChatUsage(prompt_tokens=choice.prompt_tokens, completion_tokens=choice.tokens)
        yield ChatPiece(finish=choice.finish_reason, usage=usage)
    finally:
        pieces.close()
