"""Pause, resume, stop and commands: what a user asks for, and what becomes of it."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.orchestrator.lab import ECHO, TRAIN, FakeWorker, Lab
from tunefleet.errors import ConflictError, ForbiddenError, InputError, NotFoundError
from tunefleet.executors.registry import installed
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.tasks import control, tasks
from tunefleet.orchestrator.telemetry import live_feed
from tunefleet.orchestrator.workflows import reruns
from tunefleet.schemas.api import CommandRequest
from tunefleet.schemas.control import ControlCommand
from tunefleet.schemas.worker_link import CommandOutcome, Finish, Offer, Reached, pause_id


async def running(lab: Lab, worker_id: str = "w1") -> tuple[str, FakeWorker, Offer]:
    """A training that its worker has accepted."""
    worker = await lab.online(worker_id)
    task_id = await lab.submit(TRAIN)
    return task_id, worker, await worker.start()


async def kinds(lab: Lab, task_id: str) -> list[str]:
    return [event.kind for event in await live_feed.events_after(lab.core, lab.admin, 0, task_id=task_id)]


def done(command_id: str, state: str = "durable", **more: object) -> CommandOutcome:
    return CommandOutcome.model_validate({"command_id": command_id, "state": state, **more})


async def test_a_pause_travels_as_a_wish_and_a_resume_keeps_the_place(lab: Lab) -> None:
    task_id, worker, offer = await running(lab)
    first = await lab.task(task_id)
    asked = await control.pause(lab.core, lab.admin, task_id)
    assert (asked.status, asked.desired) == ("running", "pause")
    assert "pausing" in (asked.why or "")
    again = await control.pause(lab.core, lab.admin, task_id)
    assert again.desired == "pause"
    lab.clock.advance(2)
    (wish,) = (await worker.exchange()).desired
    assert (wish.action, wish.generation) == ("pause", 1)
    assert not (await worker.exchange()).commands, "a pause is no command on the wire"

    command_id = pause_id(task_id, 1, 1)
    await worker.exchange(reached=(Reached(token=offer.token, generation=1),))
    await worker.exchange(outcomes=(done(command_id, step=12, checkpoint="checkpoint-12"),))
    await worker.finish(offer.token, "paused", "paused")
    task = await lab.task(task_id)
    assert (task.status, task.reason) == ("paused", "paused")
    command = await control.get(lab.core, lab.admin, task_id, command_id)
    assert (command.state, command.step, command.checkpoint) == ("durable", 12, "checkpoint-12")
    assert (await control.pause(lab.core, lab.admin, task_id)).status == "paused", "asking again changes nothing"
    assert not await worker.offers(), "a paused task is not placed"

    lab.clock.advance(100)
    resumed = await reruns.resume(lab.core, lab.admin, task_id)
    assert (resumed.status, resumed.desired) == ("queued", "run")
    assert resumed.queued_at == first.queued_at, "it keeps its place"
    second = await worker.start()
    assert (second.task_id, second.attempt) == (task_id, 2)
    told = await kinds(lab, task_id)
    assert [kind for kind in told if kind in {"task.pausing", "task.paused", "task.resumed", "command.durable"}] == [
        "task.pausing",
        "command.durable",
        "task.paused",
        "task.resumed",
    ]


async def test_the_time_of_a_task_is_that_of_its_runs_without_pause_and_queue(lab: Lab) -> None:
    task_id, worker, offer = await running(lab)
    lab.clock.advance(10)
    assert (await lab.task(task_id)).ran_s == 0, "it runs: what has begun is counted from its start"
    await control.pause(lab.core, lab.admin, task_id)
    await worker.finish(offer.token, "paused", "paused")
    lab.clock.advance(100)
    assert (await lab.task(task_id)).ran_s == 10
    await reruns.resume(lab.core, lab.admin, task_id)
    lab.clock.advance(100)
    again = await worker.start()
    lab.clock.advance(5)
    await worker.finish(again.token)
    (listed,) = (await tasks.list_(lab.core, lab.admin)).items
    assert listed.ran_s == 15


async def test_a_pause_that_the_job_was_not_asked_for_is_taken_back_by_a_resume(lab: Lab) -> None:
    task_id, worker, offer = await running(lab)
    await control.pause(lab.core, lab.admin, task_id)
    with pytest.raises(ConflictError, match="still being paused") as caught:
        await reruns.resume(lab.core, lab.admin, task_id, from_step=3)
    assert "cancels the pause" in (caught.value.hint or "")
    going_on = await reruns.resume(lab.core, lab.admin, task_id)
    assert (going_on.id, going_on.status, going_on.desired) == (task_id, "running", "run")
    (command,) = await control.list_(lab.core, lab.admin, task_id)
    assert (command.state, command.message) == ("failed", "Cancelled: the run was resumed.")
    lab.clock.advance(2)
    (wish,) = (await worker.exchange()).desired
    assert (wish.action, wish.generation) == ("run", 2)
    with pytest.raises(ConflictError, match="nothing to resume"):
        await reruns.resume(lab.core, lab.admin, task_id)
    # A pause on the worker's own machine later is nobody's to undo.
    await worker.exchange(
        reached=(Reached(token=offer.token, generation=2),),
        finishes=(Finish(token=offer.token, outcome="paused", reason="paused"),),
    )
    assert (await lab.task(task_id)).status == "paused"


async def test_a_job_that_has_the_pause_already_goes_on_by_itself_when_it_is_taken_back(lab: Lab) -> None:
    task_id, worker, offer = await running(lab)
    await control.pause(lab.core, lab.admin, task_id)
    await worker.exchange(outcomes=(done(pause_id(task_id, 1, 1), "acknowledged"),))
    await reruns.resume(lab.core, lab.admin, task_id)
    (command,) = await control.list_(lab.core, lab.admin, task_id)
    assert command.state == "acknowledged", "nobody knows yet that it is too late"
    await worker.finish(offer.token, "paused", "paused")
    (command,) = await control.list_(lab.core, lab.admin, task_id)
    assert command.state == "durable"
    assert (await lab.task(task_id)).status == "queued"
    assert (await worker.start()).attempt == 2


async def test_a_pause_that_fails_lets_the_training_go_on(lab: Lab) -> None:
    task_id, worker, offer = await running(lab)
    await control.pause(lab.core, lab.admin, task_id)
    command_id = pause_id(task_id, 1, 1)
    await worker.exchange(outcomes=(done(command_id, "failed", message="The disk is full."),))
    task = await lab.task(task_id)
    assert (task.status, task.desired) == ("running", "run")
    assert (await control.get(lab.core, lab.admin, task_id, command_id)).message == "The disk is full."
    assert "command.failed" in await kinds(lab, task_id)
    # Asking again is a pause of its own.
    await control.pause(lab.core, lab.admin, task_id)
    lab.clock.advance(2)
    (wish,) = (await worker.exchange()).desired
    assert (wish.action, wish.generation) == ("pause", 3)
    assert [c.id for c in await control.list_(lab.core, lab.admin, task_id)] == [command_id, pause_id(task_id, 1, 3)]
    assert offer.attempt == 1


@pytest.mark.parametrize("lost", [True, False])
async def test_a_task_that_dies_while_it_is_to_pause_is_paused_and_not_tried_again(lab: Lab, lost: bool) -> None:
    task_id, worker, offer = await running(lab)
    await control.pause(lab.core, lab.admin, task_id)
    if lost:
        await lab.sweep(lab.core.settings.lost_after_s + 2)
    else:
        await worker.finish(offer.token, "failed", "killed", error="Killed.")
    task = await lab.task(task_id)
    assert task.status == "paused"
    assert task.attempt_list[0].reason == ("worker_lost" if lost else "killed")
    (command,) = await control.list_(lab.core, lab.admin, task_id)
    assert command.state == "failed"
    assert "Not executed" in (command.message or "")
    assert (await reruns.resume(lab.core, lab.admin, task_id)).status == "queued"


async def test_what_is_not_running_cannot_be_paused_and_is_told_the_way_out(lab: Lab) -> None:
    task_id = await lab.submit(TRAIN)
    with pytest.raises(ConflictError, match="queued") as caught:
        await control.pause(lab.core, lab.admin, task_id)
    assert "tunefleet cancel" in (caught.value.hint or "")
    with pytest.raises(ConflictError, match="nothing to resume"):
        await reruns.resume(lab.core, lab.admin, task_id)
    await tasks.cancel(lab.core, lab.admin, task_id)
    with pytest.raises(ConflictError, match="cancelled"):
        await control.pause(lab.core, lab.admin, task_id)
    with pytest.raises(ConflictError, match="no checkpoint") as caught:
        await reruns.resume(lab.core, lab.admin, task_id)
    assert "tunefleet retry" in (caught.value.hint or "")
    with pytest.raises(NotFoundError):
        await control.pause(lab.core, lab.admin, "task-none")


async def test_a_light_task_and_a_foreign_one_are_refused(lab: Lab) -> None:
    worker = await lab.online()
    echo = await lab.submit(ECHO)
    (offer,) = await worker.offers()
    await worker.accept(offer.token)
    with pytest.raises(ConflictError, match="it does not train"):
        await control.pause(lab.core, lab.admin, echo)
    bob = await lab.actor("bob", "member")
    viewer = await lab.actor("eve", "viewer")
    for actor in (bob, viewer):
        with pytest.raises(ForbiddenError):
            await control.pause(lab.core, actor, echo)
        with pytest.raises(ForbiddenError):
            await control.command(lab.core, actor, echo, CommandRequest(command="evaluate"))


BETWEEN_ITEMS = {"pause", "save_checkpoint", "abort"}
MODEL = "model: {source: {identifier: 'builtin:gsm8k-llama-2m'}}"
ITEMS = "data: {type: list, items: [a]}"
KINDS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "lora_sft": ((MODEL, "data: {prompts: [one, two]}"), set(ControlCommand)),
    "command": (("command: [python, train.py]",), set(ControlCommand)),
    "inference": ((MODEL, ITEMS), BETWEEN_ITEMS),
    "embedding": ((MODEL, ITEMS), BETWEEN_ITEMS),
    "evaluate": ((MODEL, "evaluations: [{type: loss, data: {path: 'builtin:gsm8k'}}]"), BETWEEN_ITEMS),
    "rag_index": (("qdrant: {collection: notes}", ITEMS), BETWEEN_ITEMS),
    "rag": (("qdrant: {path: ./notes, collection: notes}", "query: Who?"), set()),
    "python": (('code: "def main(): return {}"',), set()),
    "data": (("sources: [{path: 'builtin:gsm8k'}]",), set()),
    "merge": (("model: {source: {identifier: some/model}, adapters: [{type: lora, path: /adapter}]}",), set()),
    "verify": ((MODEL,), set()),
    "push": (("checkpoint: {load: {path: /x}}", "push: {to: 'hf://org/name'}"), set()),
    "chat": ((MODEL,), set()),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_is_asked_for_what_its_kind_takes_and_is_refused_all_else(lab: Lab, kind: str) -> None:
    blocks, takes = KINDS[kind]
    offer = next(offer for offer in installed().offers() if offer.kind == kind)
    able = (offer.model_copy(update={"available": True, "reason": None, "features": None}),)
    worker = lab.worker()
    await worker.register(executors=able, allow_code=True)
    text = "\n".join(f"  {line}" for line in (f"taskType: {kind}", *blocks))
    task_id = await lab.submit(f"apiVersion: tunefleet/v1\nmetadata: {{name: one}}\nspec:\n{text}\n")
    await worker.start()
    data = {"set": {"save_steps": 5}}
    for name in sorted(set(ControlCommand) - takes):
        with pytest.raises(ConflictError, match=f"kind {kind} cannot be .*it supports") as caught:
            await control.command(lab.core, lab.admin, task_id, CommandRequest(command=name, data=data.get(name, {})))
        assert f"tunefleet cancel {task_id}" in (caught.value.hint or "")
        assert f"tunefleet retry {task_id}" in (caught.value.hint or "")
    assert (await lab.task(task_id)).desired == "run", "what was refused leaves no wish"
    assert await control.list_(lab.core, lab.admin, task_id) == []
    for taken in sorted(takes):
        await control.command(lab.core, lab.admin, task_id, CommandRequest(command=taken, data=data.get(taken, {})))
    assert {each.command for each in await control.list_(lab.core, lab.admin, task_id)} == takes


async def test_of_a_worker_that_does_not_say_what_its_kinds_take_anything_is_asked(lab: Lab) -> None:
    task_id, _, _ = await running(lab)
    asked = await control.stop(lab.core, lab.admin, task_id)
    assert asked.state == "pending", "the lab's worker says as little as an older one"


async def test_a_cancel_beats_a_pause(lab: Lab) -> None:
    task_id, worker, offer = await running(lab)
    await control.pause(lab.core, lab.admin, task_id)
    await tasks.cancel(lab.core, lab.admin, task_id)
    with pytest.raises(ConflictError, match="being cancelled"):
        await control.pause(lab.core, lab.admin, task_id)
    await worker.finish(offer.token, "paused", "paused")
    assert (await lab.task(task_id)).status == "cancelled"


async def test_a_command_is_repeated_until_it_is_acknowledged_and_followed_to_its_end(lab: Lab) -> None:
    task_id, worker, offer = await running(lab)
    asked = await control.command(lab.core, lab.admin, task_id, CommandRequest(command="save_checkpoint"))
    assert asked.state == "pending"
    for _ in range(2):
        lab.clock.advance(2)
        (sent,) = (await worker.exchange()).commands
        assert (sent.token, sent.command_id, sent.command) == (offer.token, asked.id, "save_checkpoint")
    await worker.exchange(outcomes=(done(asked.id, "acknowledged"),))
    lab.clock.advance(2)
    assert not (await worker.exchange()).commands
    await worker.exchange(outcomes=(done(asked.id, "applied", step=7),))
    await worker.exchange(outcomes=(done(asked.id, "acknowledged"),))  # late: no news
    waiting = asyncio.create_task(control.get(lab.core, lab.admin, task_id, asked.id, wait_s=20))
    await asyncio.sleep(0.05)
    assert not waiting.done(), "its checkpoint is not whole yet"
    await worker.exchange(outcomes=(done(asked.id, "durable", checkpoint="checkpoint-7"),))
    command = await asyncio.wait_for(waiting, 5)
    assert (command.state, command.step, command.checkpoint) == ("durable", 7, "checkpoint-7")
    await worker.exchange(outcomes=(done(asked.id, "failed"),))
    assert (await control.get(lab.core, lab.admin, task_id, asked.id)).state == "durable", "settled stays settled"


async def test_a_repeated_command_is_the_same_and_a_wrong_one_is_refused(lab: Lab) -> None:
    task_id, _, _ = await running(lab)
    request = CommandRequest(command="set", data={"learning_rate": 1e-4}, command_id="mine")
    first = await control.command(lab.core, lab.admin, task_id, request)
    assert await control.command(lab.core, lab.admin, task_id, request) == first
    with pytest.raises(ConflictError, match="another command"):
        await control.command(lab.core, lab.admin, task_id, CommandRequest(command="evaluate", command_id="mine"))
    for data, said in (({}, "at least one"), ({"momentum": 1}, "momentum"), ({"save_steps": 0}, "save_steps")):
        with pytest.raises(InputError, match=said):
            await control.command(lab.core, lab.admin, task_id, CommandRequest(command="set", data=data))
    for key, hint in (("learning_rte", "Did you mean learning_rate?"), ("momentum", "It has: learning_rate, ")):
        with pytest.raises(InputError) as caught:
            await control.command(lab.core, lab.admin, task_id, CommandRequest(command="set", data={key: 3}))
        assert (caught.value.hint or "").startswith(hint)
    with pytest.raises(InputError, match="Unknown command 'dance'") as caught:
        await control.command(lab.core, lab.admin, task_id, CommandRequest(command="dance"))
    assert "save_and_stop" in (caught.value.hint or "")


async def test_the_commands_of_an_ended_run_end_with_it(lab: Lab) -> None:
    task_id, worker, offer = await running(lab)
    stopping = await control.stop(lab.core, lab.admin, task_id)
    late = await control.command(lab.core, lab.admin, task_id, CommandRequest(command="evaluate"))
    applied = await control.command(lab.core, lab.admin, task_id, CommandRequest(command="evaluate", command_id="e"))
    await worker.exchange(outcomes=(done(applied.id, "applied", step=3),))
    # What the end brought about is said in the same breath.
    saved = done(stopping.id, step=4, checkpoint="checkpoint-4")
    await worker.exchange(outcomes=(saved,), finishes=())
    await worker.finish(offer.token, "completed", "stopped_early")
    states = {c.id: c.state for c in await control.list_(lab.core, lab.admin, task_id)}
    assert states == {stopping.id: "durable", late.id: "failed", applied.id: "applied"}
    assert (await lab.task(task_id)).reason == "stopped_early"
    with pytest.raises(ConflictError, match="completed"):
        await control.stop(lab.core, lab.admin, task_id)


async def test_only_the_worker_that_has_a_command_speaks_of_it(lab: Lab) -> None:
    task_id, _, _ = await running(lab)
    asked = await control.command(lab.core, lab.admin, task_id, CommandRequest(command="evaluate"))
    other = await lab.online("w2")
    await other.exchange(outcomes=(done(asked.id, "applied", step=1), done("unknown", "applied")))
    assert (await control.get(lab.core, lab.admin, task_id, asked.id)).state == "pending"


async def test_a_stalled_task_is_shown_and_told_once(lab: Lab) -> None:
    task_id, worker, offer = await running(lab)
    await worker.exchange(stalled={offer.token: 30.0})
    await worker.exchange(stalled={offer.token: 31.0})
    task = await lab.task(task_id)
    assert task.stalled_since is not None
    assert task.stalled_since.timestamp() == pytest.approx(lab.clock.wall - 30.0)
    # Another server process learns it anew, and does not tell it twice.
    lab.core.state(Fleet).presences["w1"].stalled = None
    await worker.exchange(stalled={offer.token: 32.0})
    await worker.exchange()
    assert (await lab.task(task_id)).stalled_since is None
    assert [k for k in await kinds(lab, task_id) if "stall" in k] == ["task.stalled", "task.stall_ended"]
    await worker.exchange(stalled={offer.token: 40.0})
    await worker.finish(offer.token, "failed", "stalled", error="It stood still.")
    assert (await lab.task(task_id)).stalled_since is None
