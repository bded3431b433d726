"""Turns of a chat between who asks and the worker that answers: nothing is lost silently, nothing waits for ever."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.orchestrator.lab import FakeWorker, Lab
from tunefleet.errors import ConflictError, ForbiddenError, InputError, UnreachableError
from tunefleet.orchestrator import chat
from tunefleet.orchestrator.access.permissions import AttemptActor
from tunefleet.orchestrator.chat import ChatSessions
from tunefleet.schemas.chat import ChatMessage, ChatPiece, ChatPoll, ChatRequest
from tunefleet.schemas.worker_link import ExecutorOffer

CHAT = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: talk}
spec:
  taskType: chat
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  retry: {backoff_s: 0}
"""
READY = ChatPoll(ready=True, models=("base", "tuned"))
HELLO = ChatRequest(messages=(ChatMessage(role="user", content="Hello?"),))


async def running(lab: Lab) -> tuple[str, FakeWorker, AttemptActor, str]:
    """A chat that its worker holds."""
    worker = lab.worker()
    await worker.register(executors=(ExecutorOffer(kind="chat"),))
    await worker.exchange()
    task_id = await lab.submit(CHAT)
    offer = await worker.start()
    return task_id, worker, await lab.attempt(offer.token), offer.token


async def heard(lab: Lab, turn: chat.Turn) -> list[ChatPiece]:
    return [piece async for piece in chat.pieces(lab.core, lab.admin, turn)]


async def test_a_turn_goes_to_the_worker_and_its_answer_comes_back(lab: Lab) -> None:
    task_id, _, attempt, _ = await running(lab)
    turn = await chat.begin(lab.core, lab.admin, task_id, HELLO)
    assert (await chat.poll(lab.core, attempt, ChatPoll())).turns == (), "the model is not loaded yet"
    (given,) = (await chat.poll(lab.core, attempt, READY)).turns
    assert given.request == HELLO
    assert (await chat.poll(lab.core, attempt, READY.model_copy(update={"held": (turn.id,)}))).turns == ()
    asking = asyncio.create_task(heard(lab, turn))
    for piece in (ChatPiece(text="Good "), ChatPiece(text="day."), ChatPiece(finish="stop")):
        assert not (await chat.receive_piece(lab.core, attempt, turn.id, piece)).gone
    assert "".join(piece.text for piece in await asking) == "Good day."
    view = await chat.view(lab.core, lab.admin, task_id)
    assert (view.ready, view.models, view.waiting) == (True, ("base", "tuned"), 0)
    with pytest.raises(InputError, match="no model 'other'"):
        await chat.begin(lab.core, lab.admin, task_id, HELLO.model_copy(update={"model": "other"}))
    lab.clock.advance(61)
    assert not (await chat.view(lab.core, lab.admin, task_id)).ready, "its worker was not heard of for a minute"


async def test_a_restart_gives_out_again_what_nobody_has_begun(lab: Lab) -> None:
    task_id, _, attempt, _ = await running(lab)
    begun = await chat.begin(lab.core, lab.admin, task_id, HELLO)
    untouched = await chat.begin(lab.core, lab.admin, task_id, HELLO)
    assert len((await chat.poll(lab.core, attempt, READY)).turns) == 2
    await chat.receive_piece(lab.core, attempt, begun.id, ChatPiece(text="Good "))
    # The worker knows of neither any more.
    (again,) = (await chat.poll(lab.core, attempt, READY)).turns
    assert again.id == untouched.id
    with pytest.raises(ConflictError, match="restarted during the answer"):
        await heard(lab, begun)


async def test_who_leaves_and_who_does_not_read_are_told_to_the_worker(lab: Lab) -> None:
    task_id, _, attempt, _ = await running(lab)
    turn = await chat.begin(lab.core, lab.admin, task_id, HELLO)
    await chat.poll(lab.core, attempt, READY)
    pieces = chat.pieces(lab.core, lab.admin, turn)
    await chat.receive_piece(lab.core, attempt, turn.id, ChatPiece(text="x"))
    await anext(pieces)
    await pieces.aclose()  # type: ignore[attr-defined]
    found = await chat.poll(lab.core, attempt, READY.model_copy(update={"held": (turn.id,)}))
    assert found.gone == (turn.id,)
    assert (await chat.receive_piece(lab.core, attempt, turn.id, ChatPiece(text="y"))).gone
    unread = await chat.begin(lab.core, lab.admin, task_id, HELLO)
    await chat.poll(lab.core, attempt, READY)
    for _ in range(3):
        await chat.receive_piece(lab.core, attempt, unread.id, ChatPiece(text="z" * (chat.MAX_UNREAD // 2)))
    with pytest.raises(ConflictError, match="is not being read"):
        await heard(lab, unread)


async def test_turns_are_bounded_and_end_with_the_task_the_silence_and_the_server(lab: Lab) -> None:
    task_id, worker, _attempt, token = await running(lab)
    turns = [await chat.begin(lab.core, lab.admin, task_id, HELLO) for _ in range(chat.MAX_TURNS)]
    with pytest.raises(ConflictError, match="is already answering"):
        await chat.begin(lab.core, lab.admin, task_id, HELLO)
    other = await lab.actor("other", "member")
    with pytest.raises(ForbiddenError):
        await chat.begin(lab.core, other, task_id, HELLO)
    lab.clock.advance(1000)
    with pytest.raises(UnreachableError, match="No answer within 1000 s"):
        await heard(lab, turns[0])
    late, last = [await chat.begin(lab.core, lab.admin, task_id, HELLO) for _ in range(2)]
    await worker.finish(token)
    with pytest.raises(ConflictError, match="has ended"):
        await heard(lab, late)
    lab.core.signals.close()
    with pytest.raises(UnreachableError, match="server is shutting down"):
        await heard(lab, last)


async def test_an_end_waits_for_the_answers_and_an_older_attempt_gets_nothing(lab: Lab) -> None:
    task_id, worker, attempt, _token = await running(lab)
    turn = await chat.begin(lab.core, lab.admin, task_id, HELLO)
    await chat.poll(lab.core, attempt, READY)
    await chat.end(lab.core, lab.admin, task_id)
    held = READY.model_copy(update={"held": (turn.id,)})
    assert not (await chat.poll(lab.core, attempt, held)).end
    await chat.receive_piece(lab.core, attempt, turn.id, ChatPiece(finish="stop"))
    assert (await chat.poll(lab.core, attempt, READY)).end
    # A long poll of the attempt before is let go as soon as the next one asks.
    waiting = asyncio.create_task(
        chat.poll(lab.core, AttemptActor("older", task_id, worker.id), READY.model_copy(update={"wait_s": 20.0}))
    )
    lab.core.state(ChatSessions).session(task_id, 0.0).ending = False
    await asyncio.sleep(0)
    await chat.begin(lab.core, lab.admin, task_id, HELLO)
    assert len((await chat.poll(lab.core, attempt, READY)).turns) + len((await waiting).turns) == 1


async def test_who_waits_is_told_that_the_worker_is_silent_and_that_it_is_back(lab: Lab) -> None:
    task_id, _, attempt, _ = await running(lab)
    await chat.poll(lab.core, attempt, ChatPoll())
    turn = await chat.begin(lab.core, lab.admin, task_id, HELLO)
    pieces = chat.pieces(lab.core, lab.admin, turn)
    assert (await anext(pieces)).waiting == "The worker is loading the model."
    lab.clock.advance(16)
    assert (await anext(pieces)).waiting == "The worker does not respond."
    (given,) = (await chat.poll(lab.core, attempt, READY)).turns
    assert (await anext(pieces)).waiting == "", "it is back"
    # One that asks for turns is there, however long it computes.
    lab.clock.advance(16)
    await chat.poll(lab.core, attempt, READY.model_copy(update={"held": (given.id,)}))
    await chat.receive_piece(lab.core, attempt, given.id, ChatPiece(text="Good "))
    assert await anext(pieces) == ChatPiece(text="Good ")
    lab.clock.advance(16)
    assert (await anext(pieces)).waiting == "The worker does not respond."


async def test_who_waits_is_told_that_the_task_does_not_run(lab: Lab) -> None:
    worker = lab.worker()
    await worker.register(executors=(ExecutorOffer(kind="chat"),))
    task_id = await lab.submit(CHAT)
    turn = await chat.begin(lab.core, lab.admin, task_id, HELLO)
    first = await anext(chat.pieces(lab.core, lab.admin, turn))
    assert first.waiting is not None
    assert task_id in first.waiting


async def test_a_turn_whose_answer_nobody_begins_to_read_is_dropped(lab: Lab) -> None:
    task_id, _, attempt, _ = await running(lab)
    given = await chat.begin(lab.core, lab.admin, task_id, HELLO)
    assert len((await chat.poll(lab.core, attempt, READY)).turns) == 1
    heard_by_somebody = await chat.begin(lab.core, lab.admin, task_id, HELLO)
    pieces = chat.pieces(lab.core, lab.admin, heard_by_somebody)
    reading = asyncio.create_task(anext(pieces))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    lab.clock.advance(11)
    found = await chat.poll(lab.core, attempt, READY.model_copy(update={"held": (given.id,)}))
    assert found.gone == (given.id,), "the worker has it, and is told"
    assert [turn.id for turn in found.turns] == [heard_by_somebody.id]
    assert (await chat.view(lab.core, lab.admin, task_id)).waiting == 1
    with pytest.raises(UnreachableError, match="not read in time"):
        await heard(lab, given)
    reading.cancel()
