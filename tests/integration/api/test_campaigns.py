"""The routes of campaigns and models on a real server that runs no campaign by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.integration.api.support import Running, is_problem, submit
from tests.integration.api.test_streams import stream
from tunefleet.campaign.service.cycle_state import CycleState, NewVersion
from tunefleet.campaign.service.engine_repository import CampaignRepository
from tunefleet.lifecycle.cycle import Stage, StepName

DATASET = {"name": "org/rows", "field_instruction": "question", "field_output": "answer"}


def spec(**more: Any) -> dict[str, Any]:
    return {"enabled": True, "model_repo": "org/model", "provider": "local", "datasets": [DATASET], **more}


def apply(client: httpx.Client, name: str, **more: Any) -> str:
    reply = client.post("/campaigns", json={"campaigns": {name: spec(**more)}})
    assert reply.status_code == 200, reply.text
    return str(reply.json()[0]["id"])


class Engine:
    """Somebody who goes through the steps of campaigns, on another thread than the server's."""

    def __init__(self, running: Running) -> None:
        self.repository = CampaignRepository(running.core)

    def take(self, id_: str) -> CycleState:
        state = asyncio.run(self.repository.take(id_, "test"))
        assert state is not None
        return state

    def to(self, id_: str, step: StepName | None) -> CycleState | None:
        return asyncio.run(self._to(self.take(id_), step))

    async def _to(self, state: CycleState | None, step: StepName | None) -> CycleState | None:
        while state is not None and state.step != step:
            state = await self.repository.done(state, {"of": state.step.value, "next_at": 0.0})
        return state

    def cycle(self, id_: str, stage: Stage = Stage.PROMOTED) -> None:
        state = self.to(id_, StepName.RECORD)
        assert state is not None
        asyncio.run(self.repository.register(state, NewVersion(stage, "model", {"url": "hf://org/x"})))
        asyncio.run(self._to(state, None))


@pytest.fixture
def engine(running: Running) -> Engine:
    return Engine(running)


def test_the_life_of_a_campaign(admin: httpx.Client, engine: Engine) -> None:
    id_ = apply(admin, "story")
    state = engine.to(id_, StepName.WAIT)
    assert state is not None
    shown = admin.get("/campaigns/story").json()
    assert (shown["id"], shown["status"], shown["cycle"]["step"]) == (id_, "active", "wait")
    assert [step["name"] for step in shown["cycle_list"][0]["steps"]] == ["data", "upload", "submit"]
    assert shown["spec"]["model_repo"] == "org/model"
    assert admin.post("/campaigns/story/pause").json()["status"] == "paused"
    assert admin.post("/campaigns/story/resume").json()["status"] == "active"
    asyncio.run(engine.repository.failed(state, "node_training_failure", fatal=True))
    retried = admin.post("/campaigns/story/retry", json={}).json()
    assert (retried["cycle"]["status"], retried["cycle"]["step"], retried["cycle"]["retried"]) == (
        "running",
        "upload",
        1,
    )
    assert admin.post("/campaigns/story/stop").json()["cycle_list"][0]["status"] == "abandoned"
    assert admin.post("/campaigns/story/start").json()["status"] == "active"
    found = admin.get("/campaigns", params={"status": "active,held", "owner": "admin"}).json()["items"]
    assert "story" in [each["name"] for each in found]


def test_models_are_listed_promoted_and_gone_back_from(admin: httpx.Client, engine: Engine) -> None:
    id_ = apply(admin, "made")
    for stage in (Stage.PROMOTED, Stage.ARCHIVED, Stage.PROMOTED):
        engine.cycle(id_, stage)
    listed = admin.get("/models", params={"name": "made"}).json()["items"]
    assert [(each["version"], each["stage"]) for each in listed] == [
        (3, "promoted"), (2, "archived"), (1, "archived"),
    ]  # fmt: skip
    assert admin.get("/models/made").json()["version"] == 3
    assert admin.post("/campaigns/made/rollback", json={}).json()["version"] == 1
    assert admin.post("/models/made/versions/2/promote").json()["stage"] == "promoted"
    is_problem(admin.post("/models/made/versions/2/promote"), 409, "conflict")
    assert admin.post("/models/made/rollback").json()["version"] == 1
    is_problem(admin.get("/models/made/versions/9"), 404, "not_found")
    is_problem(admin.get("/models", params={"stage": "best"}), 422, "request_invalid")
    page = admin.get("/campaigns/made/lineage", params={"limit": 2}).json()
    assert [(each["cycle"], each["version"]) for each in page["items"]] == [(2, 3), (1, 2)]
    rest = admin.get("/campaigns/made/lineage", params={"cursor": page["next_cursor"]}).json()
    assert [each["cycle"] for each in rest["items"]] == [0]
    assert admin.post("/campaigns/made/remerge", json={"cycle": 1}).json()["cycle"]["number"] == 1
    assert len(admin.get("/campaigns/made/cycles").json()["items"]) == 3


def test_every_fault_of_a_spec_is_named_and_nothing_is_stored(admin: httpx.Client) -> None:
    wrong = {"good": spec(), "bad": spec(hours_to_complete=-1, final_test_size=0, modelrepo="x")}
    body = is_problem(admin.post("/campaigns", json={"campaigns": wrong}), 422, "request_invalid")
    assert "hours_to_complete" in json.dumps(body)
    assert "modelrepo" in json.dumps(body)
    is_problem(admin.get("/campaigns/good"), 404, "not_found")
    is_problem(admin.post("/campaigns", json={"campaigns": {"a/b": spec()}}), 422, "request_invalid")


def test_the_log_can_be_read_and_followed_from_where_it_was_left(admin: httpx.Client, engine: Engine) -> None:
    id_ = apply(admin, "talks")
    state = engine.take(id_)
    for text in ("one", "two"):
        asyncio.run(engine.repository.log(state, "info", text))
    found = admin.get("/campaigns/talks/log").json()
    assert [line["text"] for line in found["lines"]] == ["one", "two"]
    first = found["lines"][0]
    assert (first["campaign"], first["cycle"], first["step"], first["level"]) == ("talks", 0, "data", "info")
    with stream(admin, "/campaigns/talks/log/stream", headers={"Last-Event-ID": str(first["id"])}) as lines:
        assert json.loads(next(lines)["data"])["text"] == "two"
        asyncio.run(engine.repository.log(state, "error", "three"))
        line = next(lines)
        assert (line["event"], json.loads(line["data"])["text"]) == ("line", "three")
    assert admin.get("/campaigns/talks/log", params={"after": found["next_id"]}).json()["lines"][0]["text"] == "three"


def test_events_of_one_campaign_are_followed_and_stand_in_the_common_stream(
    admin: httpx.Client, engine: Engine
) -> None:
    other, id_ = apply(admin, "quiet"), apply(admin, "loud")
    with stream(admin, "/campaigns/loud/events?after=0") as events:
        assert next(events)["event"] == "campaign.created"
        engine.to(other, StepName.UPLOAD)
        engine.to(id_, StepName.SUBMIT)
        seen = [next(events) for _ in range(3)]
    assert [event["event"] for event in seen] == ["campaign.cycle", "campaign.step", "campaign.step"]
    assert {json.loads(event["data"])["data"]["name"] for event in seen} == {"loud"}
    common = admin.get("/events", params={"kinds": "campaign.step", "after": int(seen[0]["id"])}).json()
    assert [event["data"]["step"] for event in common] == ["data", "upload"]


def test_a_campaign_reaches_with_its_token_what_a_member_reaches(
    admin: httpx.Client, running: Running, engine: Engine
) -> None:
    id_ = apply(admin, "acts")
    token = asyncio.run(engine.repository.token(id_))
    with running.client(token) as own:
        task = own.get(f"/tasks/{submit(own)}").json()
        assert task["owner"] == "admin"
        is_problem(own.get("/keys"), 403, "forbidden")
        is_problem(own.post("/link/register", json={}), 403, "forbidden")
    with running.client(f"{id_}.{'0' * 32}") as forged:
        is_problem(forged.get("/tasks"), 401, "unauthenticated")


@pytest.mark.parametrize(
    ("role", "reads", "steers"), [("member", 200, 403), ("viewer", 200, 403), ("worker", 403, 403)]
)
def test_roles(admin: httpx.Client, as_role: Callable[[str], httpx.Client], role: str, reads: int, steers: int) -> None:
    apply(admin, "guarded")
    client = as_role(role)
    assert client.get("/campaigns/guarded").status_code == reads
    assert client.get("/models").status_code == reads
    assert client.post("/campaigns/guarded/pause").status_code == 403
