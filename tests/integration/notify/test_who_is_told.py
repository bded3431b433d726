"""Notifications: who is told what, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.receiver import Receiver, Seen
from tests.integration.notify.told import channel, deliver, opened, run, verified
from tests.unit.orchestrator.lab import ECHO, TRAIN, FakeClock, Lab
from tests.unit.orchestrator.test_quotas import member
from tunefleet.errors import ConflictError, ForbiddenError, InputError, NotFoundError, SpecError
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.notifications import channels, delivery
from tunefleet.orchestrator.notifications.channel_formats import is_signing_secret, new_secret
from tunefleet.orchestrator.preflight import explain
from tunefleet.orchestrator.tasks import control, tasks
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import SubmitRequest
from tunefleet.schemas.notify import ChannelChange


async def test_a_training_that_is_done_is_told_whole_and_signed(lab: Lab, receiver: Receiver) -> None:
    secret = await channel(lab, f"{receiver.url}/hook?token=abc")
    assert secret is not None
    task_id = await lab.submit(TRAIN)
    worker = await lab.online("gpu-1")
    offer = await worker.start()
    points = [{"type": "metric", "step": step, "values": {"loss": 3.0 / step}} for step in (1, 2, 4)]
    await lab.journal(offer.token, "launch-1", [*points, {"type": "metric", "step": 4, "values": {"runtime": 1.0}}])
    lab.clock.advance(3 * 3600 + 300)
    await worker.finish(offer.token)

    (told,) = await deliver(lab)
    assert (told.state, told.event, told.tries, told.error) == ("sent", "done", 1, None)
    (seen,) = receiver.taken
    assert verified(seen, secret, lab.clock.wall)
    assert not verified(Seen(seen.path, seen.headers, seen.body.replace(b"done", b"dome")), secret, lab.clock.wall)
    assert not verified(Seen(seen.path, seen.headers | {"webhook-timestamp": "1"}, seen.body), secret, lab.clock.wall)
    assert not verified(seen, secret, lab.clock.wall + 301.0), "somebody sends it again"
    said = seen.json
    assert said["id"] == seen.headers["webhook-id"] == told.id
    assert said["text"] == ("Run train is complete. It ran for 3h 5m on gpu-1. Its last loss was 0.75, at step 4.")
    assert (said["title"], said["command"]) == ("train is complete", f"tunefleet show {task_id}")
    assert said["url"] == f"https://fleet.example.org/api/v1/tasks/{task_id}"
    assert (said["task"]["loss"], said["task"]["step"], said["task"]["runtime_s"]) == (0.75, 4, 11100.0)


@pytest.mark.parametrize(
    ("reason", "error", "event", "text"),
    [
        ("bad_input", "The dataset has no field text", "failed", "failed: an input named in its workflow file is"),
        ("disk_full", None, "failed", "failed: the disk is full. It ran for 1m 15s on w1."),
        ("diverged", "see https://u:pw@example.org/x", "failed", "see https://****@example.org/x. It ran"),
    ],
)
async def test_a_failure_is_told_with_its_reason(
    lab: Lab, receiver: Receiver, reason: str, error: str | None, event: str, text: str
) -> None:
    await channel(lab, receiver.url)
    task_id = await run(lab, outcome="failed", reason=reason, error=error)
    await deliver(lab)
    (seen,) = receiver.taken
    assert seen.json["event"] == event
    assert text in seen.json["text"]
    assert seen.json["command"] == f"tunefleet logs {task_id}"
    assert seen.headers["tunefleet-event"] == event


async def test_what_is_tried_again_is_told_too_and_a_channel_hears_what_it_wants_only(
    lab: Lab, receiver: Receiver
) -> None:
    await channel(lab, f"{receiver.url}/memory", name="memory", on=("out_of_memory",))
    await channel(lab, f"{receiver.url}/failures", name="failures", on=("failed",))
    await channel(lab, f"{receiver.url}/off", name="off")
    await channels.change(lab.core, lab.admin, "off", ChannelChange(enabled=False))
    task_id = await lab.submit(
        ECHO.replace("taskType: echo", "taskType: echo\n  retry: {max_attempts: 2, backoff_s: 0}")
    )
    worker = await lab.online()
    for _ in range(2):
        offer = await worker.start()
        await worker.finish(offer.token, "failed", "out_of_memory", error="CUDA out of memory.")
    await deliver(lab)
    said = {(seen.path, seen.json["event"], seen.json["title"]) for seen in receiver.taken}
    assert said == {
        ("/memory", "out_of_memory", "hello ran out of memory, retrying"),
        ("/memory", "out_of_memory", "hello failed: out of memory"),
        ("/failures", "failed", "hello failed: out of memory"),
    }
    texts = [seen.json["text"] for seen in receiver.taken]
    assert any(text.endswith("CUDA out of memory. It will be retried.") for text in texts)
    assert (await lab.task(task_id)).status == "failed"


async def test_a_pause_a_stall_and_a_lost_worker_are_told(lab: Lab, receiver: Receiver) -> None:
    await channel(lab, receiver.url)
    task_id = await lab.submit(TRAIN.replace("taskType: lora_sft", "taskType: lora_sft\n  on_lost: wait"))
    worker = await lab.online()
    offer = await worker.start()
    await worker.exchange(stalled={offer.token: 900.0})
    await worker.exchange(stalled={offer.token: 905.0})
    await lab.sweep(40)
    await deliver(lab)
    # Two things of one moment: the worker itself belongs to somebody else.
    assert receiver.events == ["stalled", "worker_lost"]
    assert "Its last output was 15m ago" in receiver.taken[0].json["text"]
    assert receiver.taken[1].json["text"].startswith("Run train lost its worker: w1 does not respond. The run waits")

    await worker.register()
    await control.pause(lab.core, lab.admin, task_id)
    await worker.finish(offer.token, "paused", "paused")
    await deliver(lab)
    assert receiver.events[2:] == ["paused"]
    assert receiver.taken[2].json["title"] == "train is paused"


async def test_of_a_worker_of_one_project_nobody_of_another_is_told(lab: Lab, receiver: Receiver) -> None:
    boss = await member(lab, "red", role="admin")
    await channel(lab, f"{receiver.url}/default", everyone=True)
    await channel(lab, f"{receiver.url}/red", boss, everyone=True)
    await lab.online("red-box", actor=await member(lab, "red", role="worker"))
    await lab.sweep(40)
    await deliver(lab)
    assert [(seen.path, seen.json["worker_id"]) for seen in receiver.taken] == [("/red", "red-box")]


async def test_all_that_one_transaction_ends_is_told(lab: Lab, receiver: Receiver) -> None:
    """A lost worker had two tasks; one is placed anew, the other was to wait. An admin hears of the worker too."""
    await channel(lab, receiver.url, everyone=True)
    first = await lab.submit()
    second = await lab.submit(ECHO.replace("taskType: echo", "taskType: echo\n  on_lost: wait"))
    worker = await lab.online("box")
    offers = await worker.offers()
    await worker.accept(*(offer.token for offer in offers))
    await lab.sweep(40)
    told = await deliver(lab)
    assert len({each.id for each in told}) == 3
    by_task = {(seen.json["task"] or {}).get("id"): seen.json for seen in receiver.taken}
    assert set(by_task) == {None, first, second}
    assert {each["event"] for each in by_task.values()} == {"worker_lost"}
    assert by_task[None]["worker_id"] == "box"
    assert by_task[first]["text"].startswith("Run hello was interrupted: its worker does not respond.")
    assert by_task[first]["text"].endswith("It will be retried.")
    # The ids are those of the event feed: whoever reads it there finds the same.
    assert [each.event_id for each in told] == sorted(each.event_id for each in told)


async def test_a_task_says_itself_who_is_told(lab: Lab, receiver: Receiver) -> None:
    """An address, a channel that hears nothing else, and a channel that hears it anyhow: each once."""
    await channel(lab, f"{receiver.url}/quiet", name="quiet", on=("stalled",))
    await channel(lab, f"{receiver.url}/all", name="all")
    notify = f"""
  notify:
    - {{to: "{receiver.url}/inline", on: done, format: webhook}}
    - {{to: quiet, on: [done, failed]}}
    - {{to: all, on: [done]}}
    - {{to: "mailto:ada@example.org", on: [failed]}}
"""
    task_id = await run(lab, ECHO + notify.removeprefix("\n"))
    await run(lab)
    told = await deliver(lab)
    of_it = [each for each in told if each.task_id == task_id]
    paths = [seen.path for seen in receiver.taken if seen.json["task"]["id"] == task_id]
    assert sorted(paths) == ["/all", "/inline", "/quiet"]
    assert len(of_it) == 3
    (inline,) = [seen for seen in receiver.taken if seen.path == "/inline"]
    assert "webhook-signature" not in inline.headers
    assert [seen.path for seen in receiver.taken if seen.json["task"]["id"] != task_id] == ["/all"]
    await tasks.remove(lab.core, lab.admin, task_id)
    assert task_id in {each.task_id for each in await deliver(lab)}, "what was told stays known"


async def test_who_is_named_in_a_document_hears_of_a_failure_upstream_and_channels_are_spared_it(
    lab: Lab, receiver: Receiver
) -> None:
    document = f"""apiVersion: tunefleet/v1
metadata: {{name: flow}}
spec:
  taskType: echo
  stages:
    - {{name: first, spec: {{data: {{type: list, items: [a]}}}}}}
    - name: second
      spec:
        data: {{type: list, items: ["${{first.result.items}}"]}}
        notify: [{{to: "{receiver.url}/inline", on: [failed]}}]
    - {{name: third, spec: {{data: {{type: list, items: [b]}}}}}}
"""
    await channel(lab, f"{receiver.url}/channel")
    await workflows.submit(lab.core, lab.admin, SubmitRequest(document=document))
    worker = await lab.online()
    offer = await worker.start()
    await worker.finish(offer.token, "failed", "bad_input", error="no")
    await deliver(lab)
    assert {(seen.path, seen.json["title"]) for seen in receiver.taken} == {
        ("/channel", "flow: first failed"),
        ("/inline", "flow: second failed"),
    }


async def test_nobody_hears_of_the_tasks_of_others(lab: Lab, receiver: Receiver) -> None:
    ada, bob = await lab.actor("ada", "member"), await lab.actor("bob", "member")
    viewer = await lab.actor("vera", "viewer")
    for actor in (ada, bob):
        await channel(lab, f"{receiver.url}/{actor.owner}", actor)
    await channel(lab, f"{receiver.url}/admin", name="own")
    await channel(lab, f"{receiver.url}/everyone", name="everyone", everyone=True)
    made = await workflows.submit(lab.core, ada, SubmitRequest(document=ECHO))
    worker = await lab.online()
    offer = await worker.start()
    await worker.finish(offer.token)
    await deliver(lab)
    assert {seen.path for seen in receiver.taken} == {"/ada", "/everyone"}

    with pytest.raises(ForbiddenError):
        await channel(lab, receiver.url, ada, name="mine", everyone=True)
    with pytest.raises(ForbiddenError):
        await channels.change(lab.core, ada, "team", ChannelChange(everyone=True))
    with pytest.raises(ForbiddenError):
        await channel(lab, receiver.url, viewer)
    with pytest.raises(NotFoundError):
        await channels.get(lab.core, ada, "everyone")
    theirs = (await channels.list_(lab.core, bob))[0].id
    for refused in (channels.get, channels.remove, channels.test):
        with pytest.raises(NotFoundError):
            await refused(lab.core, ada, theirs)
    assert [each.task_id for each in (await delivery.list_notifications(lab.core, ada)).items] == [made.tasks[0].id]
    assert not (await delivery.list_notifications(lab.core, bob)).items
    assert len(await channels.list_(lab.core, lab.admin)) == 4
    notify = "  notify: [{to: everyone}]\n"
    with pytest.raises(SpecError, match="you have no channel everyone"):
        await workflows.submit(lab.core, ada, SubmitRequest(document=ECHO + notify))


async def test_a_channel_for_everyone_ends_with_its_owners_admin_key(lab: Lab, receiver: Receiver) -> None:
    second = await lab.actor("second", "admin")
    await channel(lab, receiver.url, second, everyone=True)
    await run(lab)
    await deliver(lab)
    assert len(receiver.taken) == 1
    await api_keys.revoke(lab.core, lab.admin, second.key_id)
    await run(lab)
    await deliver(lab)
    assert len(receiver.taken) == 1


TOLD = """apiVersion: tunefleet/v1
metadata: {name: told}
spec:
  taskType: echo
  notify:
    - to: nobody
  stages:
    - {name: first, spec: {data: {type: list, items: [a]}}}
    - name: second
      spec:
        data: {type: list, items: ["${first.result.count}"]}
        notify: [{to: team}, {to: else}]
    - {name: third, spec: {data: {type: list, items: [b]}}}
"""


async def test_a_channel_that_is_not_there_is_named_where_it_stands_at_a_submit_and_a_dry_run(lab: Lab) -> None:
    await channel(lab, "https://example.org/hook")
    request = SubmitRequest(document=TOLD)
    with pytest.raises(SpecError) as refused:
        await workflows.submit(lab.core, lab.admin, request)
    assert [(fault.line, fault.column, fault.path, fault.message) for fault in refused.value.faults] == [
        (6, 11, "spec.notify.0.to", "you have no channel nobody"),
        (12, 35, "spec.stages.1.spec.notify.1.to", "you have no channel else"),
    ]
    dry = await explain.of_document(lab.core, lab.admin, request)
    assert [(fault.line, fault.path) for fault in dry.faults] == [
        (each.line, each.path) for each in refused.value.faults
    ]


async def test_what_cannot_be_used_is_refused_at_once(lab: Lab, data: Path) -> None:
    for to in (
        "ftp://example.org",
        "https://",
        "mailto:",
        "mailto:a@b.c,d@e.f",
        "mailto:a@b.c?bcc=x@y.z",
        "https://a b/",
    ):
        with pytest.raises(InputError, match="The URL must"):
            await channel(lab, to)
    with pytest.raises(InputError, match="does not support the format slack"):
        await channel(lab, "mailto:a@b.c", format="slack")
    with pytest.raises(InputError, match="not signed"):
        await channel(lab, "https://hooks.slack.com/services/x", secret=new_secret())
    await channel(lab, "https://example.org/hook", secret=new_secret())
    with pytest.raises(ConflictError, match="Channel team already exists"):
        await channel(lab, "https://example.org/hook")
    assert not is_signing_secret("whsec_short")
    lab.core.close()
    async with opened(data, FakeClock()) as other:
        with pytest.raises(InputError, match="no mail server configured"):
            await channel(other, "mailto:a@b.c", name="mail")
        with pytest.raises(SpecError, match="this server has no mail server configured"):
            await other.submit(ECHO + "  notify: [{to: 'mailto:a@b.c'}]\n")


async def test_what_is_undone_is_told_to_nobody(lab: Lab, receiver: Receiver) -> None:
    """A channel and an end that were rolled back together leave no notification, and no memory of the channel."""
    from tunefleet.db.repositories import events
    from tunefleet.db.repositories import notifications as rows
    from tunefleet.db.repositories.events import Event

    task_id = await lab.submit()

    def operation(connection: Any) -> None:
        values = {
            "id": "chn-x", "project": lab.admin.project, "owner": lab.admin.owner, "name": "x", "format": "webhook",
            "target": receiver.url, "secret": None, "events": "done", "everyone": 0, "enabled": 1, "created_at": 1.0,
        }  # fmt: skip
        rows.insert_one(connection, values)
        events.append(connection, [Event("task.completed", 1.0, task_id, data={"status": "completed"})])
        # The watch looks at the end of the transaction; this operation fails before.
        raise ConflictError("undone")

    with pytest.raises(ConflictError):
        await lab.core.write(operation)
    worker = await lab.online()
    offer = await worker.start()
    await worker.finish(offer.token)
    assert await deliver(lab) == []


async def test_without_channels_a_transaction_asks_the_store_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunefleet.db.repositories import notifications as rows
    from tunefleet.orchestrator.notifications import facts

    await run(lab)
    asked: list[str] = []
    monkeypatch.setattr(rows, "all_rows", lambda _: asked.append("channels") or [])
    monkeypatch.setattr(rows, "any_wish", lambda _: asked.append("wishes") or False)
    monkeypatch.setattr(facts, "occasions", lambda _: asked.append("event") or ())
    await run(lab)
    assert asked == []


async def test_a_fault_in_the_words_undoes_nothing(
    lab: Lab, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tunefleet.orchestrator.notifications import facts

    def broken(*_: object) -> None:
        raise ValueError("broken")

    await channel(lab, receiver.url)
    monkeypatch.setattr(facts, "cases", broken)
    task_id = await run(lab)
    assert (await lab.task(task_id)).status == "completed"
    assert "Cannot create notifications" in caplog.text


async def test_of_a_task_that_is_spread_the_whole_is_told(lab: Lab, receiver: Receiver) -> None:
    spread = "taskType: echo\n  parallel: {enabled: true, max_shards: 2}\n  notify: [{to: team, on: [done]}]"
    await channel(lab, receiver.url)
    made = await workflows.submit(lab.core, lab.admin, SubmitRequest(document=ECHO.replace("taskType: echo", spread)))
    worker = await lab.online()
    offers = await worker.offers()
    await worker.accept(*(offer.token for offer in offers))
    for offer in offers:
        await worker.finish(offer.token, result={"items": []})
    await deliver(lab)
    assert len(offers) == 2
    assert [seen.json["task"]["id"] for seen in receiver.taken] == [made.tasks[0].id]
