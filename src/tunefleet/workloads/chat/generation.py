"""From a turn to the pieces of its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tunefleet.errors import InputError
from tunefleet.schemas.chat import ChatPiece, ChatRequest, ChatUsage
from tunefleet.spec.options.generation import InferenceSpec
from tunefleet.workloads.chat.models import Models
from tunefleet.workloads.engine.protocol import Request, Sampling
from tunefleet.workloads.faults import RequestError
from tunefleet.workloads.inference.questions import Question
from tunefleet.workloads.inference.runner import render, sampling_of

_AS_THEY_ARE = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
)  # fmt: skip
_TOO_LONG: Final = re.compile(r"Prompt \d+ has (\d+) tokens, and the model knows (\d+)")


@dataclass(frozen=True, slots=True)
class Talk(Question):
    """A conversation, asked as one question."""

    said: Sequence[dict[str, str]] = ()

    @property
    def messages(self) -> list[dict[str, str]]:
        """It as it was held."""
        return list(self.said)


def answer(models: Models, inference: InferenceSpec, request: ChatRequest) -> Iterator[ChatPiece]:
    """Yield an answer piece by piece; the last one says how it ended.

    Raises:
        InputError: If it cannot be answered.
    """
    wanted = request.model or models.default
    if not models.is_open(wanted):
        yield ChatPiece(waiting=f"The worker loads the model for {wanted!r}.")
    engine, adapter = models.of(wanted)
    messages = [message.model_dump(exclude_none=True) for message in request.messages]
    if inference.system_prompt and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": inference.system_prompt})
    prompt, rendered = render(engine, Talk(request.messages[-1].content, said=messages), inference)
    pieces = engine.stream(Request(0, prompt, sampling(inference, request), adapter, rendered))
    try:
        while True:
            yield ChatPiece(text=next(pieces))
    except StopIteration as end:
        choice = end.value
        usage = ChatUsage(prompt_tokens=choice.prompt_tokens, completion_tokens=choice.tokens)
        yield ChatPiece(finish=choice.finish_reason, usage=usage)
    except RequestError as error:
        raise _of_conversation(error) from error
    finally:
        pieces.close()


def _of_conversation(error: RequestError) -> InputError:
    """Return what is wrong in the words of somebody who talks, and knows of no prompts and their numbers."""
    found = _TOO_LONG.match(error.message)
    if found is None:
        return error
    return InputError(
        f"The conversation has {found[1]} tokens, and the model knows {found[2]} with its answer.",
        hint="/reset begins anew; a client of its own leaves older messages out.",
    )


def sampling(inference: InferenceSpec, request: ChatRequest) -> Sampling:
    """Return how a turn's answer is drawn: as it says, else as the spec says."""
    changes: dict[str, Any] = {name: getattr(request, name) for name in _AS_THEY_ARE}
    changes["max_tokens"] = request.max_completion_tokens or request.max_tokens
    changes["stop"] = request.stop or None
    wanted = request.response_format
    if wanted is not None and wanted.type == "json_object":
        changes["schema"] = json.dumps({"type": "object"})
    elif wanted is not None and wanted.type == "json_schema":
        schema = (wanted.json_schema or {}).get("schema")
        if not isinstance(schema, dict):
            raise InputError("response_format names no schema.", hint='Write {"json_schema": {"schema": {…}}}.')
        changes["schema"] = json.dumps(schema)
    drawn = sampling_of(inference)
    found = {name: getattr(drawn, name) for name in Sampling.__dataclass_fields__}
    return Sampling(**{**found, **{name: value for name, value in changes.items() if value is not None}})
