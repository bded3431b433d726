"""Trainings that are federations over the fleet: their parts, their rounds, and what each end means for the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.unit.orchestrator.federating import Party, keep
from tests.unit.orchestrator.lab import FakeWorker, Lab
from tests.unit.orchestrator.pipelines import Pipelines, stage
from tunefleet.db.federations import federations
from tunefleet.errors import ConflictError, SpecError
from tunefleet.lifecycle.round import RoundStatus
from tunefleet.orchestrator.federation import delegated_access, participants, service
from tunefleet.orchestrator.scheduling import queue as queue_reader
from tunefleet.orchestrator.storage.result_files import files, signer
from tunefleet.orchestrator.tasks import federation_settlement as task_settlement
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.workflows import shard_merge, workflows
from tunefleet.schemas.api import SubmitRequest, WorkflowDetail
from tunefleet.schemas.federated import FederationCreated
from tunefleet.schemas.worker_link import Offer

MODEL = {"source": {"identifier": "builtin:gsm8k-llama-2m"}}


def training(workers: int = 2, *, output: dict[str, Any] | None = None, **federation: Any) -> dict[str, Any]:
    """A federated training without retries."""
    return {
        "taskType": "lora_sft",
        "model": MODEL,
        "data": {"prompts": ["one", "two", "three", "four"]},
        "federation": {"workers": workers, **federation},
        "retry": {"max_attempts": 1},
        **({} if output is None else {"output": output}),
    }


class Federated:
    """A workflow with one federated training, and its federation."""

    def __init__(self, pipe: Pipelines, flow: WorkflowDetail, party: Party) -> None:
        self.pipe = pipe
        self.flow = flow
        self.party = party

    async def offers(self) -> list[Offer]:
        return sorted(await self.pipe.take(), key=lambda offer: offer.name)

    async def states(self) -> dict[str, str]:
        await task_settlement.run_once(self.pipe.lab.core)
        return await self.pipe.states(self.flow)

    async def status(self) -> str:
        return (await self.party.row()).status

    async def done(self, *offers: Offer) -> None:
        for offer in offers:
            await self.pipe.end(offer, {"dataset_size": 2, "steps": 4, "model_name": "m"})

    async def found(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.pipe.found(self.flow, "train"))["federation"]
        return found


@pytest.fixture
async def pipe(lab: Lab) -> Pipelines:
    worker: FakeWorker = lab.worker()
    worker.want = {"job": 4, "light": 4}
    await worker.register(slots={"job": 4, "light": 4})
    await worker.exchange()
    return Pipelines(lab, worker)


async def begin(
    pipe: Pipelines, tmp_path: Path, *more: dict[str, Any], retry: dict[str, Any] | None = None, **spec: Any
) -> Federated:
    own = {} if retry is None else {"retry": retry}
    flow = await pipe.submit(stage("train", spec=training(**spec) | own), *more)
    whole = await pipe.task(flow, "train")
    row = await federation_of(pipe.lab, whole.id)
    detail = await service.get(pipe.lab.core, pipe.lab.admin, row)
    made = FederationCreated(**dict(detail), token="", callback_secret="")
    return Federated(pipe, flow, Party(pipe.lab, made, tmp_path))


async def federation_of(lab: Lab, task_id: str) -> str:
    def read(connection: Any) -> str:
        seq = tasks.find(connection, lab.admin, task_id).seq
        return federations.of_tasks(connection, [seq])[seq].id

    return await lab.core.read(read)


async def test_the_parts_are_told_how_to_take_part_and_the_newest_version_is_the_tasks_adapter(
    pipe: Pipelines, tmp_path: Path
) -> None:
    after = stage("after", "train", spec={"data": {"type": "list", "items": ["${train.result.federation.version}"]}})
    fed = await begin(pipe, tmp_path, after)
    assert await fed.states() == {"train": "running", "train#0": "queued", "train#1": "queued", "after": "pending"}
    one, two = await fed.offers()
    assert [offer.spec["shard"]["index"] for offer in (one, two)] == [0, 1]
    assert [offer.federation.worker for offer in (one, two) if offer.federation] == ["part-0", "part-1"]
    assert one.federation is not None
    assert one.federation.id == fed.party.id
    assert one.federation.token == participants.token_of(pipe.lab.core.secret, fed.party.id)
    stored = await pipe.lab.core.read(lambda connection: tasks.find(connection, pipe.lab.admin, one.task_id))
    assert one.federation.token not in json.dumps([one.spec, str(stored), (await fed.party.row()).spec])
    (shown,) = (await service.list_(pipe.lab.core, pipe.lab.admin)).items
    assert shown.task_id == (await pipe.task(fed.flow, "train")).id
    why = (await pipe.task(fed.flow, "train")).why
    assert why is not None
    assert f"their federation {fed.party.id} is running, in round 1, and it has no version yet" in why

    await fed.party.upload("part-0", 1.0)
    await fed.party.upload("part-1", 3.0)
    await keep(pipe.lab.core)
    await fed.done(one)
    assert (await fed.states())["train"] == "running"
    await fed.done(two)
    assert await fed.status() == "completed"
    assert (await fed.states())["train"] == "completed"
    found = await fed.found()
    assert (found["id"], found["version"], found["contributors"]) == (fed.party.id, 1, ["part-0", "part-1"])
    assert [(part["worker"], part["task_id"], part["rows"]) for part in found["parts"]] == [
        ("part-0", one.task_id, 2),
        ("part-1", two.task_id, 2),
    ]
    whole = await pipe.found(fed.flow, "train")
    assert (whole["dataset_size"], whole["model_name"], whole["final_lora_archive_url"]) == (4, "m", None)
    version = await fed.party.version()
    task = await pipe.task(fed.flow, "train")
    listed = await files(pipe.lab.core, pipe.lab.admin, task.id, signer(pipe.lab.core, "http://here"))
    sums = {file.name: file.sha256 for file in listed.files}
    assert sums["final_lora/adapter_model.safetensors"] == version.sha256
    await pipe.run()
    assert pipe.specs["after"]["data"]["items"] == [1]


async def test_where_the_parts_pack_their_adapters_so_does_the_whole(pipe: Pipelines, tmp_path: Path) -> None:
    fed = await begin(pipe, tmp_path, output={"artifacts": ["final_lora.tar.gz"]})
    offers = await fed.offers()
    for number, offer in enumerate(offers):
        await fed.party.upload(f"part-{number}", 1.0)
        url = f"http://server:8000/api/v1/results/{offer.task_id}/files/final_lora.tar.gz?expires=1&signature=a"
        await pipe.end(offer, {"final_lora_archive_url": url})
    await keep(pipe.lab.core)
    assert (await fed.states())["train"] == "completed"
    whole, version = await pipe.found(fed.flow, "train"), await fed.party.version()
    task = await pipe.task(fed.flow, "train")
    link = f"http://server:8000/api/v1/results/{task.id}/files/final_lora.tar.gz?"
    assert whole["final_lora_archive_url"].startswith(link)
    listed = await files(pipe.lab.core, pipe.lab.admin, task.id, signer(pipe.lab.core, "http://here"))
    assert {file.sha256 for file in listed.files if file.name == "final_lora.tar.gz"} == {version.archive_sha256}


async def test_a_round_waits_for_the_parts_that_a_worker_has_and_not_for_those_in_the_queue(
    pipe: Pipelines, tmp_path: Path
) -> None:
    pipe.worker.want = {"job": 2}
    fed = await begin(pipe, tmp_path, workers=3)
    one, two = await fed.offers()
    await fed.party.upload("part-0", 1.0)
    assert (await fed.party.round()).status == RoundStatus.COLLECTING
    await fed.party.upload("part-1", 1.0)
    assert (await fed.party.round()).status == RoundStatus.AGGREGATING
    await keep(pipe.lab.core)
    await fed.done(one)
    (three,) = await fed.offers()
    await fed.party.upload("part-2", 1.5)
    assert (await fed.party.round()).status == RoundStatus.COLLECTING, "part-1 is at work"
    await fed.done(two)
    assert (await fed.party.round()).status == RoundStatus.ABANDONED, "no second update can come"
    assert await fed.status() == "completed"
    await fed.done(three)
    assert (await fed.states())["train"] == "completed"
    assert (await fed.found())["version"] == 1


async def test_what_a_part_has_sent_before_its_end_counts(pipe: Pipelines, tmp_path: Path) -> None:
    fed = await begin(pipe, tmp_path)
    one, two = await fed.offers()
    await fed.party.upload("part-0", 1.0)
    await fed.done(one)
    assert await fed.status() == "running"
    await fed.party.upload("part-1", 2.0)
    assert (await fed.party.round()).status == RoundStatus.AGGREGATING
    await fed.done(two)
    assert (await fed.states())["train"] == "running", "its last version is not there yet"
    await keep(pipe.lab.core)
    assert (await fed.states())["train"] == "completed"
    assert (await fed.found())["version"] == 1


async def test_a_part_that_fails_for_good_leaves_while_enough_others_are_there(pipe: Pipelines, tmp_path: Path) -> None:
    fed = await begin(pipe, tmp_path, workers=3)
    one, two, three = await fed.offers()
    await fed.party.upload("part-0", 1.0)
    await fed.party.upload("part-1", 1.0)
    await pipe.end(three, "bug")
    assert (await fed.states())["train"] == "running"
    assert (await fed.party.round()).status == RoundStatus.AGGREGATING, "nobody waits for it any more"
    await keep(pipe.lab.core)
    await fed.done(one, two)
    assert (await fed.states())["train"] == "completed"
    assert [(part["status"], part["error"]) for part in (await fed.found())["parts"]] == [
        ("completed", None),
        ("completed", None),
        ("failed", "train#2 broke."),
    ]


async def test_when_too_few_parts_are_left_the_whole_fails_and_so_ends_its_federation(
    pipe: Pipelines, tmp_path: Path
) -> None:
    fed = await begin(pipe, tmp_path)
    one, two = await fed.offers()
    await pipe.end(two, "bug")
    task = await pipe.task(fed.flow, "train")
    assert (task.status, task.error) == ("failed", f"Its shard train#1 ({two.task_id}) failed: train#1 broke.")
    assert await fed.status() == "cancelled"
    (desired,) = (await pipe.worker.exchange()).desired
    assert (desired.token, desired.action) == (one.token, "cancel")


async def test_a_part_that_is_tried_again_takes_part_under_its_name(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("train", spec=training() | {"retry": {"max_attempts": 2, "backoff_s": 0}}))
    first = sorted(await pipe.take(), key=lambda offer: offer.name)[0]
    await pipe.end(first, "network")
    assert (await pipe.states(flow))["train#0"] == "queued"
    pipe.worker.want = {"job": 1}
    (again,) = await pipe.take()
    assert first.federation is not None
    assert (again.name, again.attempt) == ("train#0", 2)
    assert again.federation == first.federation.model_copy(update={"attempt": 2})


async def test_a_round_closes_without_a_part_that_goes_back_into_the_queue(pipe: Pipelines, tmp_path: Path) -> None:
    fed = await begin(pipe, tmp_path, workers=3, retry={"max_attempts": 2, "backoff_s": 0})
    three = (await fed.offers())[2]
    await fed.party.upload("part-0", 1.0)
    await fed.party.upload("part-1", 1.0)
    await keep(pipe.lab.core)
    assert (await fed.party.round()).status == RoundStatus.COLLECTING, "part-2 is at work"
    await pipe.end(three, "network")
    assert (await fed.states())["train#2"] == "queued"
    await keep(pipe.lab.core)
    assert ((await fed.party.round(1)).status, (await fed.party.row()).version) == (RoundStatus.PUBLISHED, 1)


async def test_an_attempt_is_told_the_token_that_is_good_then(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("train", spec=training() | {"retry": {"max_attempts": 2, "backoff_s": 0}}))
    id_ = await federation_of(pipe.lab, (await pipe.task(flow, "train")).id)
    first = sorted(await pipe.take(), key=lambda offer: offer.name)[0]
    new = await delegated_access.replace_token(pipe.lab.core, pipe.lab.admin, id_)
    await pipe.end(first, "network")
    pipe.worker.want = {"job": 1}
    (again,) = await pipe.take()
    assert first.federation is not None
    assert again.federation == first.federation.model_copy(update={"token": new.token, "attempt": 2})


async def test_who_cancels_the_whole_cancels_parts_and_federation(pipe: Pipelines, tmp_path: Path) -> None:
    fed = await begin(pipe, tmp_path)
    offers = await fed.offers()
    await workflows.cancel(pipe.lab.core, pipe.lab.admin, fed.flow.id)
    assert {each.action for each in (await pipe.worker.exchange()).desired} == {"cancel"}
    for offer in offers:
        await pipe.worker.finish(offer.token, "cancelled", "cancelled_by_user")
    assert set((await fed.states()).values()) == {"cancelled"}
    assert await fed.status() == "cancelled"


async def test_who_cancels_the_federation_cancels_the_task(pipe: Pipelines, tmp_path: Path) -> None:
    fed = await begin(pipe, tmp_path)
    await fed.offers()
    await service.cancel(pipe.lab.core, pipe.lab.admin, fed.party.id)
    assert (await fed.states())["train"] == "cancelled"
    task = await pipe.task(fed.flow, "train")
    assert task.error == f"Its federation {fed.party.id} was cancelled."
    assert {each.action for each in (await pipe.worker.exchange()).desired} == {"cancel"}


async def test_a_paused_federation_ends_nothing_until_it_goes_on(pipe: Pipelines, tmp_path: Path) -> None:
    fed = await begin(pipe, tmp_path)
    await service.pause(pipe.lab.core, pipe.lab.admin, fed.party.id)
    for number, offer in enumerate(await fed.offers()):
        await fed.party.upload(f"part-{number}", 1.0)
        await fed.done(offer)
    assert (await fed.states())["train"] == "running"
    await service.start(pipe.lab.core, pipe.lab.admin, fed.party.id)
    await keep(pipe.lab.core)
    assert (await fed.states())["train"] == "completed"


async def test_after_its_rounds_the_federation_is_complete_and_the_parts_may_end_as_they_like(
    pipe: Pipelines, tmp_path: Path
) -> None:
    fed = await begin(pipe, tmp_path, rounds=1)
    one, two = await fed.offers()
    await fed.party.upload("part-0", 1.0)
    await fed.party.upload("part-1", 1.0)
    await keep(pipe.lab.core)
    assert await fed.status() == "completed"
    assert (await fed.states())["train"] == "running"
    with pytest.raises(ConflictError, match="takes its adapter from"):
        await service.remove(pipe.lab.core, pipe.lab.admin, fed.party.id)
    await fed.done(one)
    await pipe.end(two, "bug")
    assert (await fed.states())["train"] == "completed", "what it has given is in the version"
    await service.remove(pipe.lab.core, pipe.lab.admin, fed.party.id)


async def test_without_a_version_there_is_no_adapter(pipe: Pipelines, tmp_path: Path) -> None:
    fed = await begin(pipe, tmp_path)
    await fed.done(*await fed.offers())
    task = await pipe.task(fed.flow, "train")
    assert (await fed.states())["train"] == "failed"
    task = await pipe.task(fed.flow, "train")
    assert task.error == f"No round of its federation {fed.party.id} has had the updates of 2 parts."


async def test_another_server_on_the_store_settles_what_the_first_one_left(pipe: Pipelines, tmp_path: Path) -> None:
    fed = await begin(pipe, tmp_path)
    for number, offer in enumerate(await fed.offers()):
        await fed.party.upload(f"part-{number}", 1.0)
        await fed.done(offer)
    core = pipe.lab.core
    await shard_merge.run_once(core)
    assert (await pipe.states(fed.flow))["train"] == "running"
    await keep(core)
    for _ in range(2):  # the second one finds nothing to do
        await task_settlement.run_once(core)
    task = await pipe.task(fed.flow, "train")
    assert task.status == "completed"
    assert await core.read(federations.unsettled) == []
    listed = await files(core, pipe.lab.admin, task.id, signer(core, "http://here"))
    assert [file.name for file in listed.files].count("final_lora/adapter_model.safetensors") == 1


async def test_a_fleet_that_cannot_run_all_parts_at_a_time_is_told_of(lab: Lab) -> None:
    await lab.online()
    document = {"apiVersion": "tunefleet/v1", "metadata": {"name": "train"}, "spec": training(workers=3)}
    request = SubmitRequest(document=orjson.dumps(document).decode())
    made = await workflows.submit(lab.core, lab.admin, request)
    told = "a federation of 3 parts, of which this fleet runs 1 at a time: a round needs 2 at the same time, so"
    assert [each.startswith(f"Task train is {told}") for each in made.warnings] == [True]
    with pytest.raises(SpecError, match="a round needs 2 at the same time, so it waits"):
        await workflows.submit(lab.core, lab.admin, request.model_copy(update={"strict": True}))
    await lab.online("w2")
    made = await workflows.submit(lab.core, lab.admin, request.model_copy(update={"strict": True}))
    assert made.warnings[0].endswith("runs 2 at a time: the others join when slots are free.")


async def test_parts_that_cannot_run_together_leave_the_only_worker_to_other_tasks(lab: Lab) -> None:
    one = await lab.online()
    document = {"apiVersion": "tunefleet/v1", "metadata": {"name": "train"}, "spec": training(workers=2)}
    flow = await workflows.submit(lab.core, lab.admin, SubmitRequest(document=orjson.dumps(document).decode()))
    alone = training(workers=2)
    del alone["federation"]
    simple = await lab.submit(orjson.dumps({**document, "spec": alone}).decode())
    assert [offer.task_id for offer in await one.offers()] == [simple]
    part = next(task for task in (await workflows.get(lab.core, lab.admin, flow.id)).tasks if task.name == "train#0")
    told = "waiting: its federation needs 2 workers at the same time, and 1 is online."
    assert ((await lab.task(part.id)).why, part.status) == (told, "queued")
    two = await lab.online("w2")
    # Now both could run together: the first starts, and the other one is next.
    assert [offer.name for offer in await two.offers()] == ["train#0"]
    other = next(task for task in (await workflows.get(lab.core, lab.admin, flow.id)).tasks if task.name == "train#1")
    assert told != (await lab.task(other.id)).why


async def test_parts_that_do_not_wait_for_each_other_may_run_one_after_another(lab: Lab) -> None:
    one = await lab.online()
    document = {"apiVersion": "tunefleet/v1", "metadata": {"name": "train"}, "spec": training(workers=2, wait_s=0)}
    await workflows.submit(lab.core, lab.admin, SubmitRequest(document=orjson.dumps(document).decode()))
    assert [offer.name for offer in await one.offers()] == ["train#0"]


async def test_parts_that_are_held_back_hide_none_behind_them(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_reader, "MAX_CANDIDATES", 2)
    one = await lab.online()
    for name, wait_s in (("together", 60), ("apart", 0)):
        spec = training(workers=4, min_workers=2, wait_s=wait_s)
        document = {"apiVersion": "tunefleet/v1", "metadata": {"name": name}, "spec": spec}
        await workflows.submit(lab.core, lab.admin, SubmitRequest(document=orjson.dumps(document).decode()))
    assert [offer.name for offer in await one.offers()] == ["apart#0"]
