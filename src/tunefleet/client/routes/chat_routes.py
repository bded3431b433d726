"""The calls of a chat, for users and for the worker that answers."""

from __future__ import annotations

import json
from typing import Any

from tunefleet.client.call import Call, Emit, NextLine, OpenLines, SseReader, Stream, model, nothing, path
from tunefleet.errors import ConflictError, UnreachableError
from tunefleet.schemas.chat import ChatHeard, ChatPiece, ChatPoll, ChatRequest, ChatTurns, ChatUsage, ChatView

_SILENCE_S = 60.0


def get_chat(task_id: str) -> Call[ChatView]:
    """Return the state of a chat session."""
    return Call("GET", path("tasks", task_id, "chat"), model(ChatView))


def end_chat(task_id: str) -> Call[ChatView]:
    """End a chat session; its task's status becomes completed."""
    return Call("DELETE", path("tasks", task_id, "chat"), model(ChatView))


def chat(task_id: str, request: ChatRequest) -> Stream[ChatPiece]:
    """Yield the answer to the last message of a conversation in pieces; the last piece has the finish reason.

    Pieces with `waiting` contain no text, but the reason for the delay.

    Args:
        task_id: A task of kind `chat`.
        request: The conversation and the sampling parameters.

    Raises:
        ConflictError: If the chat has ended, or the turn failed; the message has the reason.
        UnreachableError: If the connection breaks during the answer; the chat continues.
    """
    call = Call(
        "POST",
        path("tasks", task_id, "chat"),
        nothing,
        body=request.model_copy(update={"stream": True}),
        headers={"Accept": "text/event-stream"},
        repeatable=False,
        read_timeout_s=_SILENCE_S,
    )
    handle = yield OpenLines(call)
    reader = SseReader()
    while (line := (yield NextLine(handle))) is not None:
        event = reader.feed(line)
        if event is None:
            continue
        if event.data == "[DONE]":
            return
        piece = _piece(json.loads(event.data))
        if piece != ChatPiece():
            # The first chunk contains only the role.
            yield Emit(piece)
    raise UnreachableError(
        "The connection broke during the answer.", hint="Send the message again; the chat continues."
    )


def fetch_turns(task_id: str, poll: ChatPoll) -> Call[ChatTurns]:
    """Poll for turns, as the worker that answers them."""
    timeout_s = poll.wait_s + 15.0
    return Call(
        "POST",
        path("tasks", task_id, "chat", "turns"),
        model(ChatTurns),
        body=poll,
        # Delivered turns are not delivered again: a retry could lose them.
        repeatable=False,
        read_timeout_s=timeout_s,
    )


def tell_piece(task_id: str, turn_id: str, piece: ChatPiece) -> Call[ChatHeard]:
    """Send a piece of an answer, as the worker that answers."""
    return Call(
        "POST", path("tasks", task_id, "chat", "turns", turn_id), model(ChatHeard), body=piece, repeatable=False
    )


def _piece(data: dict[str, Any]) -> ChatPiece:
    failed = data.get("error")
    if failed is not None:
        raise ConflictError(str(failed.get("message")), hint=failed.get("hint"))
    choice = data["choices"][0]
    usage = data.get("usage")
    return ChatPiece(
        text=choice["delta"].get("content") or "",
        finish=choice.get("finish_reason"),
        usage=None if usage is None else ChatUsage.model_validate(usage),
        waiting=data.get("waiting"),
    )
