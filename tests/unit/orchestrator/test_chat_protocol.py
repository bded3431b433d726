"""What clients of OpenAI's protocol send and get."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import Request, Response
from pydantic import ValidationError

from tests.unit.orchestrator.lab import Lab
from tests.unit.orchestrator.test_chats import HELLO, READY, running
from tunefleet.api.routers import chat
from tunefleet.client.call import Emit, NextLine
from tunefleet.client.routes import chat_routes
from tunefleet.orchestrator.chat import begin, poll, receive_piece
from tunefleet.schemas.chat import ChatPiece, ChatRequest, ChatUsage

PLAIN = {"messages": [{"role": "user", "content": "Hello?"}]}


def read(**more: Any) -> ChatRequest:
    return ChatRequest.model_validate_json(json.dumps({**PLAIN, **more}))


def test_what_clients_write_of_what_they_do_not_want_changes_nothing() -> None:
    nothing = {
        "stop": None, "n": None, "tools": None, "tool_choice": None, "logprobs": None, "user": None, "stream": None,
        "stream_options": None, "response_format": None, "temperature": None, "seed": None, "functions": [],
        "logit_bias": {}, "top_logprobs": 0, "modalities": ["text"], "parallel_tool_calls": True, "store": False,
        "metadata": {"run": "7"}, "service_tier": "auto",
    }  # fmt: skip
    assert read(**nothing).model_dump() == read().model_dump()
    assert read(logprobs=False, tool_choice="auto", stream_options={"include_usage": True}).messages == read().messages


def test_messages_as_clients_write_them() -> None:
    found = read(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
            {"role": "user", "content": "Hello?", "name": "ann"},
            # As a client sends back what it was answered.
            {"role": "assistant", "content": "Yes.", "refusal": None, "tool_calls": None, "annotations": []},
            {"role": "user", "content": "Who?", "name": None},
        ]
    )
    assert [each.model_dump(exclude_none=True) for each in found.messages] == [
        {"role": "system", "content": "Be\nbrief."},
        {"role": "user", "content": "Hello?", "name": "ann"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Who?"},
    ]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"tools": [{"type": "function"}]}, "tools are not supported"),
        ({"tool_choice": "required"}, "tools are not supported"),
        ({"logprobs": True}, "probabilities are not supported"),
        ({"logit_bias": {"7": 1}}, "biases are not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url'"),
        ({"messages": [{"role": "tool", "content": "7"}]}, "role"),
        ({"n": 2}, "n"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_what_would_not_be_answered_as_it_is_asked_is_refused(body: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        read(**body)


async def test_models_are_listed_once_the_session_is_ready(lab: Lab) -> None:
    task_id, _, attempt, _ = await running(lab)
    assert (await chat.list_chat_models(lab.core, lab.admin, task_id)).data == ()
    await poll(lab.core, attempt, READY)
    found = (await chat.list_chat_models(lab.core, lab.admin, task_id)).model_dump()
    assert found["object"] == "list"
    assert [(each["id"], each["object"]) for each in found["data"]] == [("base", "model"), ("tuned", "model")]


def request_of(receive: Callable[[], Awaitable[Any]]) -> Request:
    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


async def whole(lab: Lab, task_id: str, receive: Callable[[], Awaitable[Any]]) -> Response:
    return await chat.complete_chat(request_of(receive), lab.core, lab.admin, task_id, HELLO)


async def test_an_answer_at_once_is_gathered(lab: Lab) -> None:
    task_id, _, attempt, _ = await running(lab)
    asking = asyncio.create_task(whole(lab, task_id, asyncio.Event().wait))
    (turn,) = (await poll(lab.core, attempt, READY.model_copy(update={"wait_s": 20.0}))).turns
    ending = ChatPiece(finish="stop", usage=ChatUsage(prompt_tokens=3, completion_tokens=2))
    for piece in (ChatPiece(text="Good "), ChatPiece(waiting="It thinks."), ChatPiece(text="day."), ending):
        await receive_piece(lab.core, attempt, turn.id, piece)
    found = json.loads((await asking).body)
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Good day."}
    assert (choice["finish_reason"], found["usage"]["total_tokens"]) == ("stop", 5)


async def test_the_turn_of_a_client_that_leaves_before_its_answer_is_whole_ends(lab: Lab) -> None:
    task_id, _, attempt, _ = await running(lab)
    left = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    asking = asyncio.create_task(whole(lab, task_id, receive))
    (turn,) = (await poll(lab.core, attempt, READY.model_copy(update={"wait_s": 20.0}))).turns
    left.set()
    assert (await asking).status_code == 499
    held = READY.model_copy(update={"held": (turn.id,)})
    assert (await poll(lab.core, attempt, held)).gone == (turn.id,)


async def test_a_stream_says_first_who_speaks_and_why_nothing_comes(lab: Lab) -> None:
    task_id, _, attempt, _ = await running(lab)
    await poll(lab.core, attempt, READY)
    turn = await begin(lab.core, lab.admin, task_id, HELLO)
    await receive_piece(lab.core, attempt, turn.id, ChatPiece(waiting="It loads."))
    await receive_piece(lab.core, attempt, turn.id, ChatPiece(text="Yes."))
    await receive_piece(lab.core, attempt, turn.id, ChatPiece(finish="stop"))
    events = [event.data async for event in chat._chunks(lab.core, lab.admin, turn)]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(str(event)) for event in events[:-1]]
    assert all(len(chunk["choices"]) == 1 for chunk in chunks), "clients look at the first choice of every chunk"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[1]["waiting"] == "It loads."
    # Our own client makes pieces of them again.
    stream = chat_routes.chat(task_id, HELLO)
    next(stream)
    lines = iter([line for event in events for line in (f"data: {event}", "")])
    got, told = [], stream.send("handle")
    try:
        while True:
            if isinstance(told, Emit):
                got.append(told.value)
                told = next(stream)
            else:
                assert isinstance(told, NextLine)
                told = stream.send(next(lines))
    except StopIteration:
        pass
    assert [(piece.text, piece.waiting, piece.finish) for piece in got] == [
        ("", "It loads.", None), ("Yes.", None, None), ("", None, "stop"),
    ]  # fmt: skip
