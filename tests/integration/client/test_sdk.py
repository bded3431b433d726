from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.integration.api.support import ECHO, HandWorker, Running
from tests.integration.client.conftest import LOG, Played
from tunefleet.client import AsyncClient, Client
from tunefleet.errors import (
    AuthError,
    ConflictError,
    ForbiddenError,
    InputError,
    NotFoundError,
    SpecError,
)

SFT = """apiVersion: tunefleet/v1
kind: Training
metadata: {name: local}
spec:
  taskType: sft
  model: {source: {identifier: builtin:gsm8k-llama-2m}}
  data: {path: ./rows.jsonl, text_field: text}
  training: {max_steps: 1}
"""


def test_from_submit_to_files(client: Client, hand: HandWorker, take: Callable[..., Played], tmp_path: Path) -> None:
    played = take(tmp_path)
    hand.finish(played.token)
    task = client.tasks.wait(played.task_id, timeout_s=10)
    assert (task.status, task.result and task.result["result"]) == ("completed", {"ok": True})
    assert [point.step for point in client.tasks.follow_metrics(task.id)] == list(range(2, 41, 2))
    assert "".join(client.tasks.follow_log(task.id)).endswith(LOG)
    assert [event.kind for event in client.events.list(task_id=task.id)][:2] == ["task.queued", "task.offered"]
    where = client.tasks.fetch_output(task.id, "adapter", tmp_path / "got")
    assert (where / "adapter.bin").read_bytes() == b"weights" * 1000
    with pytest.raises(NotFoundError, match="Available artifacts: final_lora"):
        client.tasks.fetch_output(task.id, "model", tmp_path / "none")


def test_a_run_is_followed_from_its_handle(client: Client, hand: HandWorker) -> None:
    run = client.submit(ECHO)
    with pytest.raises(TimeoutError, match="it continues"):
        run.wait(timeout_s=0)
    hand.finish(hand.take(run.task_id))
    seen: list[str] = []
    assert run.wait(on_update=lambda task: seen.append(task.status)).status == "completed"
    assert seen[-1] == "completed"
    assert run.artifacts() == ()
    assert run.metrics().points == ()
    assert run.refresh().id == run.task.id
    assert client.submit(ECHO, idempotency_key="same").task_id == client.submit(ECHO, idempotency_key="same").task_id


def test_json_is_read_as_json_however_it_comes(client: Client, running: Running) -> None:
    hard = ["\U0001f600 é", "a \\ud83d\\ude00 b", "C:\\\U0001f600 \x7f\x85"]
    said = {
        "apiVersion": "tunefleet/v1",
        "kind": "EchoTask",
        "metadata": {"name": "json"},
        "spec": {"taskType": "echo", "data": {"type": "list", "items": hard}},
    }
    escaped = json.dumps(said)
    assert "\\ud83d" in escaped
    made = [client.submit(said), client.submit(escaped)]
    headers = {"Authorization": f"Bearer {running.admin_key}", "Content-Type": "application/json"}
    reply = httpx.post(f"{running.url}/api/v1/workflows", content=escaped, headers=headers)
    assert reply.status_code == 201, reply.text
    specs = [client.tasks.get(run.task_id).resolved or client.tasks.get(run.task_id).spec for run in made]
    specs.append(client.tasks.get(reply.json()["tasks"][0]["id"]).spec)
    assert [spec["data"]["items"] for spec in specs] == [hard] * 3
    with pytest.raises(InputError, match="cannot be serialized as JSON"):
        client.submit({"spec": {1, 2}})


async def test_the_asynchronous_client_does_all_that(running: Running, hand: HandWorker, tmp_path: Path) -> None:
    async with AsyncClient(running.url, running.admin_key) as client:
        run = await client.submit(ECHO)
        happened = client.events.follow(after=0, workflow_id=run.workflow.id)
        first = await asyncio.wait_for(anext(aiter(happened)), 10)
        assert first.workflow_id == run.workflow.id
        await asyncio.to_thread(lambda: hand.finish(hand.take(run.task_id)))
        assert (await run.wait()).status == "completed"
        assert [piece async for piece in run.follow_log()] == []
        (tmp_path / "d.txt").write_text("data")
        pushed = await client.data.push(tmp_path / "d.txt", name="async-data")
        assert (await client.data.fetch("async-data", tmp_path / "back")).read_text() == "data"
        assert pushed.digest in {made.digest async for made in client.artifacts.iterate()}
        await client.data.remove(pushed.id)
        with pytest.raises(NotFoundError):
            await client.data.get("async-data")


def test_local_files_travel_with_the_submit(client: Client, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "sft.yaml").write_text(SFT)
    run = client.submit(tmp_path / "sft.yaml", overrides={"training.max_steps": 2})
    task = run.refresh()
    assert task.spec["training"]["max_steps"] == 2
    assert client.artifacts.get(task.inputs["data.path"]).files[0].path == "rows.jsonl"
    assert "unschedulable" in (task.why or "")
    assert run.cancel().status == "cancelled"
    (tmp_path / "rows.jsonl").unlink()
    with pytest.raises(SpecError, match=r"spec\.data\.path: \./rows\.jsonl not found at"):
        client.submit(tmp_path / "sft.yaml")


def test_a_wrong_document_never_leaves_this_machine(client: Client, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(SFT.replace("max_steps", "maxsteps"))
    with pytest.raises(SpecError) as caught:
        client.submit(tmp_path / "bad.yaml")
    assert caught.value.filename == str(tmp_path / "bad.yaml")
    assert [fault.line for fault in caught.value.faults] == [7, 8]
    with pytest.raises(SpecError, match="with these changes"):
        client.submit(SFT, overrides={"training.max_steps": "many"})
    assert not client.workflows.validate("{}").ok


def test_keys_say_what_one_may_do(client: Client, running: Running, hand: HandWorker) -> None:
    made = client.keys.create("watcher", "viewer", owner="ann")
    with Client(running.url, made.secret) as viewer:
        assert viewer.info().owner == "ann"
        assert viewer.workers.get("by-hand").id == "by-hand"
        with pytest.raises(ForbiddenError):
            viewer.submit(ECHO)
    client.keys.revoke(made.id)
    with Client(running.url, made.secret) as viewer, pytest.raises(AuthError):
        viewer.tasks.list()


def test_a_workflow_as_a_whole(client: Client, hand: HandWorker) -> None:
    run = client.submit(ECHO)
    assert client.workflows.get(run.workflow.id).document == ECHO
    assert run.workflow.id in {workflow.id for workflow in client.workflows.iterate(page_size=1)}
    with pytest.raises(ConflictError):
        client.workflows.remove(run.workflow.id)
    assert client.workflows.cancel(run.workflow.id).status in {"cancelled", "running"}
    again = client.tasks.retry(run.task_id)
    assert again.parent_task_id == run.task_id
    client.tasks.cancel(again.id)
    client.workflows.remove(run.workflow.id)
    with pytest.raises(NotFoundError):
        client.workflows.get(run.workflow.id)
    assert client.schema()["title"]
