"""Retry, remerge, rollback, and the registry that they leave."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.campaign.service.desk import ADA, BOB, HOUR, go, made, reached, taken
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.service import history, model_registry, retries, service
from tunefleet.campaign.service.cycle_state import CycleState, ModelVersion, NewVersion
from tunefleet.campaign.service.engine_repository import CampaignRepository
from tunefleet.errors import ConflictError, ForbiddenError, NotFoundError
from tunefleet.lifecycle.cycle import CampaignStatus, CycleStatus, Stage, StepName
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.workflows import prune
from tunefleet.schemas.campaign import CampaignRetry

PROMOTED, ARCHIVED = Stage.PROMOTED, Stage.ARCHIVED


@pytest.fixture
def repository(lab: Lab) -> CampaignRepository:
    return CampaignRepository(lab.core)


async def registered(
    repository: CampaignRepository, state: CycleState, stage: Stage = PROMOTED, **location: Any
) -> ModelVersion:
    """Go on to the end of a cycle, and enter a version on the way."""
    at = await go(repository, state, to=StepName.RECORD)
    assert at is not None
    version = await repository.register(
        at, NewVersion(stage, "model", location or {"url": "hf://org/x"}, reason="Better.")
    )
    await go(repository, at, to=None)
    return version


async def test_a_task_that_failed_is_ordered_anew_under_a_key_of_its_own(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.WAIT)
    assert state.key(StepName.EVALUATE, "base") == f"{id_}/0/evaluate/base"
    await repository.failed(state, "node_training_failure", fatal=True)
    await retries.retry(lab.core, ADA, id_, CampaignRetry())
    found = await taken(repository, id_)
    assert (found.number, found.step, list(found.outcomes)) == (0, StepName.UPLOAD, [StepName.DATA])
    assert (found.order_key, found.key(StepName.EVALUATE)) == (f"{id_}/0.1", f"{id_}/0.1/evaluate")


async def test_an_order_that_may_have_been_placed_keeps_its_key_and_its_intent(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.SUBMIT)
    state = await repository.intend(state, {"key": state.order_key})
    await repository.failed(state, "422", fatal=True)
    await retries.retry(lab.core, ADA, id_, CampaignRetry())
    found = await taken(repository, id_)
    assert (found.step, found.intent, found.order_key) == (StepName.SUBMIT, {"key": f"{id_}/0"}, f"{id_}/0")


@pytest.mark.parametrize("step", [None, StepName.EVALUATE])
async def test_what_runs_elsewhere_is_known_after_a_failure_and_a_retry_until_the_step_is_done(
    lab: Lab, repository: CampaignRepository, step: StepName | None
) -> None:
    id_ = await made(lab, budget={"max_failures": 1})
    state = await repository.intend(await reached(repository, id_, StepName.MERGE), {})
    await repository.keep(state, {"job": "job-1"})
    await repository.failed(state, "The key is refused.", fatal=False)
    await retries.retry(lab.core, ADA, id_, CampaignRetry(step=step))
    found = await taken(repository, id_)
    assert StepName.MERGE not in found.outcomes
    if step is not None:
        shown = (await service.get(lab.core, ADA, id_)).cycle_list[0].steps
        assert "merge" not in [each.name for each in shown], "it has not begun again"
        there = await go(repository, found, to=StepName.MERGE)
        assert there is not None
        found = there
    assert found.kept == {"job": "job-1"}
    found = await repository.intend(found, {})
    assert found.kept == {"job": "job-1"}
    after = await repository.done(found, {"url": "hf://org/x"})
    assert after is not None
    assert (after.kept, after.outcomes[StepName.MERGE]) == (None, {"url": "hf://org/x"})


async def test_a_retry_takes_the_newest_configuration(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab, budget={"max_failures": 1})
    await repository.failed(await taken(repository, id_), "There is no column question.", fatal=False)
    await made(lab, random_seed=9)
    detail = await retries.retry(lab.core, ADA, id_, CampaignRetry())
    assert (detail.status, detail.failures) == (CampaignStatus.ACTIVE, 0)
    found = await taken(repository, id_)
    assert (found.tries, found.spec.random_seed) == (0, 9)


async def test_what_failed_is_asked_for_under_another_key_and_what_was_ordered_is_not(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab, budget={"max_failures": 1})
    state = await reached(repository, id_, StepName.EVALUATE)
    await repository.failed(state, "The worker has no room.", fatal=False)
    await retries.retry(lab.core, ADA, id_, CampaignRetry())
    found = await taken(repository, id_)
    assert found.key(StepName.EVALUATE) != state.key(StepName.EVALUATE)
    assert (found.order_key, found.outcomes) == (state.order_key, state.outcomes)


async def test_a_step_that_acts_is_not_torn_away_from_who_acts(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    await repository.failed(await reached(repository, id_, StepName.SUBMIT), "The network.", fatal=False)
    lab.clock.advance(HOUR)
    state = await taken(repository, id_)
    with pytest.raises(ConflictError, match="The step submit of cycle 0 of daily is running"):
        await retries.retry(lab.core, ADA, id_, CampaignRetry(step=StepName.DATA))
    await retries.retry(lab.core, ADA, id_, CampaignRetry())
    assert await repository.done(state, {"ticket": "t"}) is not None


async def test_a_merge_that_failed_is_tried_alone(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    await repository.failed(await reached(repository, id_, StepName.MERGE), "Out of memory.", fatal=True)
    await retries.retry(lab.core, ADA, id_, CampaignRetry())
    found = await taken(repository, id_)
    assert (found.step, found.intent, found.order_key) == (StepName.MERGE, None, f"{id_}/0")
    assert len(found.outcomes) == 6


async def test_a_chunk_that_a_later_cycle_took_over_is_not_paid_for_again(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab)
    await repository.failed(await reached(repository, id_, StepName.WAIT), "No.", fatal=True)
    lab.clock.advance(HOUR)
    await go(repository, await taken(repository, id_), to=None)
    with pytest.raises(ConflictError, match="Cycle 1 of daily took over the chunk of cycle 0"):
        await retries.retry(lab.core, ADA, id_, CampaignRetry(cycle=0))
    with pytest.raises(ConflictError, match="Nothing in campaign daily has failed"):
        await retries.retry(lab.core, ADA, id_, CampaignRetry())
    with pytest.raises(NotFoundError, match=r"has no cycle 9 \(cycles so far: 2\)"):
        await retries.retry(lab.core, ADA, id_, CampaignRetry(cycle=9))


async def test_a_retry_goes_back_as_far_as_it_is_told_and_not_forward(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    await repository.failed(await reached(repository, id_, StepName.GATE), "No.", fatal=True)
    with pytest.raises(ConflictError, match="is at step gate and has not reached publish"):
        await retries.retry(lab.core, ADA, id_, CampaignRetry(step=StepName.PUBLISH))
    await retries.retry(lab.core, ADA, id_, CampaignRetry(step=StepName.EVALUATE))
    assert (await taken(repository, id_)).step is StepName.EVALUATE


async def test_a_remerge_redoes_merge_publish_and_record_and_moves_no_interval(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab)
    first = await reached(repository, id_, StepName.RECORD)
    await repository.register(first, NewVersion(PROMOTED, "model", {"url": "hf://org/one"}))
    wakes_at = lab.clock.wall + HOUR
    await go(repository, first, to=None, sleep={"next_at": wakes_at})
    await retries.remerge(lab.core, ADA, id_)
    steps, state = [], await taken(repository, id_)
    while state is not None:
        steps.append(state.step.value)
        if state.step is StepName.RECORD:
            version = await repository.register(state, NewVersion(PROMOTED, "model", {"url": "hf://org/two"}))
        state = await repository.done(state, {})  # type: ignore[assignment]
    assert steps == ["merge", "publish", "record"]
    assert (version.version, version.stage, version.location) == (2, PROMOTED, {"url": "hf://org/two"})
    assert await repository.due() == {id_: wakes_at}
    lab.clock.advance(HOUR)
    assert (await taken(repository, id_)).position == 1


async def test_an_old_model_that_is_merged_again_does_not_push_out_the_promoted_one(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab)
    for _ in range(2):
        await registered(repository, await taken(repository, id_))
    await retries.remerge(lab.core, ADA, id_, 0)
    old = await taken(repository, id_)
    assert (old.number, old.step) == (0, StepName.MERGE)
    version = await registered(repository, old, url="hf://org/again")
    assert (version.version, version.stage) == (3, ARCHIVED)
    promoted = await model_registry.get_version(lab.core, ADA, "daily")
    assert promoted.version == 2


async def test_nothing_to_merge_again_is_said(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    await reached(repository, id_, StepName.GATE)
    with pytest.raises(ConflictError, match="No cycle of daily has merged a model and finished"):
        await retries.remerge(lab.core, ADA, id_)
    with pytest.raises(ConflictError, match="Cycle 0 of daily is running"):
        await retries.remerge(lab.core, ADA, id_, 0)


async def test_of_one_model_one_version_is_promoted_and_a_rollback_goes_further_back_each_time(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab)
    for stage in (PROMOTED, ARCHIVED, PROMOTED, PROMOTED):
        lab.clock.advance(1)
        await registered(repository, await taken(repository, id_), stage)
    stages = {each.version: each.stage for each in (await model_registry.list_versions(lab.core, ADA)).items}
    assert stages == {1: ARCHIVED, 2: ARCHIVED, 3: ARCHIVED, 4: PROMOTED}
    assert (await retries.rollback(lab.core, ADA, id_)).version == 3
    assert (await model_registry.rollback(lab.core, ADA, "daily")).version == 1
    state = await taken(repository, id_)
    base = await repository.promoted(state)
    assert base is not None
    assert base.version == 1
    with pytest.raises(ConflictError, match="No version of daily was promoted before version 1"):
        await retries.rollback(lab.core, ADA, id_)
    assert (await retries.rollback(lab.core, ADA, id_, 4)).stage is PROMOTED
    with pytest.raises(ConflictError, match="Version 4 of daily is already promoted"):
        await retries.rollback(lab.core, ADA, id_, 4)
    with pytest.raises(ForbiddenError):
        await model_registry.promote(lab.core, BOB, "daily", 2)
    assert (await model_registry.promote(lab.core, ADA, "daily", 2)).reason == "ada promoted it."


async def test_the_same_try_enters_one_version_and_does_not_undo_what_a_person_decided(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab)
    await registered(repository, await taken(repository, id_))
    state = await reached(repository, id_, StepName.RECORD)
    new = NewVersion(PROMOTED, "model", {"url": "hf://org/two"})
    assert (await repository.register(state, new)).version == 2
    await retries.rollback(lab.core, ADA, id_)
    repeated = await repository.register(state, new)
    assert (repeated.version, repeated.stage) == (2, ARCHIVED)
    assert (await model_registry.get_version(lab.core, ADA, "daily")).version == 1


async def test_models_of_the_same_name_are_told_apart_by_their_owners(lab: Lab, repository: CampaignRepository) -> None:
    for actor in (ADA, BOB):
        await registered(repository, await taken(repository, await made(lab, actor=actor), actor.owner))
    assert (await model_registry.get_version(lab.core, BOB, "daily")).owner == "bob"
    with pytest.raises(ConflictError, match="Several users have a model daily: ada, bob"):
        await model_registry.get_version(lab.core, lab.admin, "daily")
    assert (await model_registry.get_version(lab.core, lab.admin, "daily", owner="ada")).owner == "ada"
    with pytest.raises(NotFoundError, match="Model nightly not found"):
        await model_registry.get_version(lab.core, ADA, "nightly")


async def test_lineage_leads_from_the_chunk_to_the_model(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    state = await go(
        repository,
        await taken(repository, id_),
        to=StepName.RECORD,
        data={"chunk": {"digest": "d" * 64}},
        submit={"ticket": "t-1"},
        gate={"passed": True},
    )
    assert state is not None
    await registered(repository, state)
    (found,) = (await history.lineage(lab.core, ADA, "daily")).items
    assert (found.status, found.version, found.stage) == (CycleStatus.COMPLETED, 1, PROMOTED)
    assert found.chunk == {"chunk": {"digest": "d" * 64}}
    assert (found.task, found.gate, found.merged) == ({"ticket": "t-1"}, {"passed": True}, {"of": "merge"})


async def test_a_rollback_while_a_cycle_runs_is_not_undone_by_it(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    for number in range(2):
        await registered(repository, await taken(repository, id_), url=f"hf://org/{number}")
    ordered = {"base": {"repo": "daily-v2", "version": 2}}
    state = await go(repository, await taken(repository, id_), to=StepName.RECORD, submit=ordered)
    assert state is not None
    await retries.rollback(lab.core, ADA, id_)
    for _ in range(2):
        new = NewVersion(PROMOTED, "model", {"url": "hf://org/2"}, reason="Better.")
        version = await repository.register(state, new)
        assert version.stage is ARCHIVED
        assert version.reason == (
            "It was trained from version 2, and version 1 was promoted meanwhile, so it does not replace it. Better."
        )
    await go(repository, state, to=None)
    ordered = {"base": {"repo": "daily-v1", "version": 1}}
    state = await go(repository, await taken(repository, id_), to=StepName.RECORD, submit=ordered)
    assert state is not None
    assert (await registered(repository, state)).stage is PROMOTED


async def test_a_signed_link_is_for_the_engine_alone(lab: Lab, repository: CampaignRepository) -> None:
    link = "https://store/bucket/x.json?X-Amz-Expires=60&X-Amz-Signature=0123abcd"
    id_ = await made(lab)
    state = await go(repository, await taken(repository, id_), to=StepName.SUBMIT, upload={"url": link})
    assert state is not None
    assert state.outcomes[StepName.UPLOAD] == {"url": link}
    shown = (await service.get(lab.core, ADA, id_)).cycle_list[0].steps[1].outcome
    assert shown == {"url": link.replace("0123abcd", "*" * 8)}


async def test_events_tell_of_every_step_and_of_the_model(lab: Lab, repository: CampaignRepository) -> None:
    id_ = await made(lab)
    await registered(repository, await taken(repository, id_))
    found = await history.events_after(lab.core, ADA, "daily", 0)
    kinds = [event.kind for event in found]
    assert kinds[:3] == ["campaign.created", "campaign.cycle", "campaign.step"]
    assert kinds.count("campaign.step") == 11
    assert kinds[-3:] == ["campaign.step", "campaign.step", "campaign.cycle_completed"]
    promoted = next(event for event in found if event.kind == "campaign.promoted")
    assert promoted.data == {
        "campaign": id_, "name": "daily", "model": "daily", "version": 1, "cycle": 0, "reason": "Better.",
    }  # fmt: skip
    assert (await service.get(lab.core, ADA, "daily")).promoted == 1


async def test_a_task_whose_model_may_be_in_use_is_neither_removed_nor_pruned(
    lab: Lab, repository: CampaignRepository
) -> None:
    id_ = await made(lab)
    kept, gone = [await lab.submit() for _ in range(2)]
    for task_id in (kept, gone):
        await tasks.cancel(lab.core, lab.admin, task_id)
    await registered(repository, await taken(repository, id_), task_id=kept)
    await registered(repository, await taken(repository, id_), ARCHIVED, task_id=gone)
    with pytest.raises(ConflictError, match=f"Run {kept} produced version 1 of model daily"):
        await tasks.remove(lab.core, lab.admin, kept)
    lab.clock.advance(HOUR)
    await prune.run(lab.core, HOUR / 2)
    assert (await tasks.get(lab.core, lab.admin, kept)).id == kept
    with pytest.raises(NotFoundError):
        await tasks.get(lab.core, lab.admin, gone)
