"""Campaigns are made and changed by name, and belong to whoever makes them."""

from __future__ import annotations

import pytest

from tests.unit.campaign.service.desk import ADA, BOB, go, made, reached, spec, taken
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign import runpod
from tunefleet.campaign.service import engine_token, service
from tunefleet.campaign.service.engine_repository import CampaignRepository
from tunefleet.db.campaigns import campaigns
from tunefleet.errors import AuthError, ConflictError, ForbiddenError, InputError, NotFoundError
from tunefleet.lifecycle.cycle import CampaignStatus, CycleStatus, StepName
from tunefleet.observability.logs import scrub
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.schemas.api import KeyCreate

ADMIN = Actor("key-root", "root", "admin")


async def test_a_file_is_applied_by_name_and_others_stay_as_they_are(lab: Lab) -> None:
    first = await service.apply(lab.core, ADA, {"one": spec(), "two": spec(enabled=False)})
    assert [(each.name, each.change, each.status.value) for each in first] == [
        ("one", "created", "active"),
        ("two", "created", "paused"),
    ]
    second = await service.apply(lab.core, ADA, {"two": spec(random_seed=7), "three": spec()})
    assert [(each.name, each.change, each.status.value) for each in second] == [
        ("two", "changed", "active"),
        ("three", "created", "active"),
    ]
    third = await service.apply(lab.core, ADA, {"two": spec(random_seed=7)})
    assert [(each.id, each.change) for each in third] == [(first[1].id, "unchanged")]
    listed = (await service.list_(lab.core, ADA)).items
    assert [each.name for each in listed] == ["three", "two", "one"]


async def test_what_a_person_paused_or_stopped_stays_so_when_the_file_is_applied_again(lab: Lab) -> None:
    id_ = await made(lab)
    for verb, status in ((service.pause, "paused"), (service.stop, "stopped")):
        await verb(lab.core, ADA, id_)
        await made(lab, random_seed=5)
        shown = await service.get(lab.core, ADA, id_)
        assert (shown.status.value, shown.spec["random_seed"]) == (status, 5)
        await made(lab, start=True)
        assert (await service.get(lab.core, ADA, id_)).status is CampaignStatus.ACTIVE


async def test_a_campaign_that_is_not_enabled_rests_until_its_file_enables_it(lab: Lab) -> None:
    id_ = await made(lab)
    await made(lab, enabled=False, start=True)
    shown = await service.get(lab.core, ADA, id_)
    assert (shown.status, shown.reason) == (CampaignStatus.PAUSED, "Its configuration has enabled: false.")
    await made(lab)
    assert (await service.get(lab.core, ADA, id_)).status is CampaignStatus.ACTIVE


async def test_a_stored_spec_is_what_its_author_wrote(lab: Lab) -> None:
    await made(lab, task_type="InstructText", gate={"min_gain": 0.01})
    stored = (await service.get(lab.core, ADA, "daily")).spec
    assert (stored["gate"]["min_gain"], stored["chat_template"]) == (0.01, "chatml")
    row = (await lab.core.read(lambda connection: campaigns.named(connection, "default", "daily")))[0]
    assert "chat_template" not in row.spec
    (same,) = await service.apply(lab.core, ADA, {"daily": spec(gate={"min_gain": 0.01})})
    assert same.change == "unchanged", "to say what is the default anyway changes nothing"


async def test_a_change_holds_from_the_next_cycle_on(lab: Lab) -> None:
    repository = CampaignRepository(lab.core)
    id_ = await made(lab, hours_to_complete=8)
    state = await reached(repository, id_, StepName.WAIT)
    await made(lab, hours_to_complete=2)
    state = await repository.intend(state, {})
    assert state.spec.hours_to_complete == 8
    await go(repository, state, to=None)
    assert (await taken(repository, id_)).spec.hours_to_complete == 2


async def test_all_or_none_are_applied(lab: Lab) -> None:
    wanted = {"good": spec(), "bad": spec(notify=[{"to": "nobody"}])}
    with pytest.raises(InputError, match="bad: nobody"):
        await service.apply(lab.core, ADA, wanted)
    assert (await service.list_(lab.core, ADA)).items == ()


async def test_the_same_name_of_two_people_is_two_campaigns(lab: Lab) -> None:
    mine, theirs = await made(lab), await made(lab, actor=BOB)
    assert mine != theirs
    assert (await service.get(lab.core, ADA, "daily")).id == mine
    assert (await service.get(lab.core, BOB, "daily")).id == theirs
    with pytest.raises(ConflictError, match="campaign daily: ada, bob"):
        await service.get(lab.core, ADMIN, "daily")
    assert (await service.get(lab.core, ADMIN, theirs)).owner == "bob"


async def test_only_its_owner_and_admins_steer_a_campaign(lab: Lab) -> None:
    id_ = await made(lab)
    for verb in (service.pause, service.resume, service.stop, service.start):
        with pytest.raises(ForbiddenError, match="Campaign daily belongs to ada"):
            await verb(lab.core, BOB, id_)
    viewer = Actor("key-v", "ada", "viewer")
    with pytest.raises(ForbiddenError):
        await service.pause(lab.core, viewer, id_)
    assert (await service.get(lab.core, viewer, id_)).name == "daily"
    assert (await service.pause(lab.core, ADMIN, id_)).reason == "root paused it."
    with pytest.raises(NotFoundError, match="Campaign nightly not found"):
        await service.get(lab.core, ADA, "nightly")


async def test_resume_says_what_it_takes_where_it_does_not_do(lab: Lab) -> None:
    repository = CampaignRepository(lab.core)
    id_ = await made(lab, budget={"max_failures": 1})
    assert (await service.resume(lab.core, ADA, id_)).status is CampaignStatus.ACTIVE
    await repository.failed(await taken(repository, id_), "No room on the disk.", fatal=False)
    with pytest.raises(ConflictError, match="No room on the disk") as held:
        await service.resume(lab.core, ADA, id_)
    assert held.value.message.startswith("Campaign daily is held. Action required: `tunefleet campaign retry daily`. ")
    assert held.value.hint is None, "the reason says it"
    await service.stop(lab.core, ADA, id_)
    with pytest.raises(ConflictError, match="is stopped") as stopped:
        await service.resume(lab.core, ADA, id_)
    assert stopped.value.hint == "Resume it with `tunefleet campaign start daily`."
    again = await service.start(lab.core, ADA, id_)
    assert (again.status, again.cycle_list[0].status) == (CampaignStatus.ACTIVE, CycleStatus.ABANDONED)


async def test_a_campaign_acts_as_its_owner_while_that_one_has_a_key(lab: Lab) -> None:
    made_key = await api_keys.create(lab.core, lab.admin, KeyCreate(name="ada", role="member", owner="ada"))
    id_ = await made(lab)
    token = await CampaignRepository(lab.core).token(id_)
    assert await engine_token.authenticate(lab.core, token) == Actor(id_, "ada", "member")
    for wrong in (f"{id_}.{'0' * 32}", f"camp-000000000000.{token.partition('.')[2]}"):
        with pytest.raises(AuthError, match="not valid"):
            await engine_token.authenticate(lab.core, wrong)
    assert token not in scrub(f"Bearer {token}")
    await api_keys.revoke(lab.core, lab.admin, made_key.id)
    with pytest.raises(AuthError, match="ada, who owns campaign daily, no longer has a key"):
        await engine_token.authenticate(lab.core, token)


async def test_no_credential_of_a_source_is_shown_and_none_is_taken_with_a_password(lab: Lab) -> None:
    row = {"field_instruction": "q", "field_output": "a"}
    id_ = await made(lab, datasets=[{"path": "https://host/rows.jsonl?token=0123456789abcdef", **row}])
    shown = (await service.get(lab.core, ADA, id_)).spec["datasets"][0]["path"]
    assert shown == f"https://host/rows.jsonl?token={'*' * 16}"
    with pytest.raises(ValueError, match="contains a password"):
        spec(datasets=[{"path": "https://me:secret@host/rows.jsonl", **row}])


@pytest.mark.parametrize("key", ["hf_" + "aB3" * 11, "rpa_" + "AB3" * 12])
def test_a_key_that_a_program_elsewhere_quotes_is_starred_out(key: str) -> None:
    said = f"401 for {key}: not yours"
    assert scrub(said) == said.replace(key, "*" * len(key))
    assert key not in str(runpod.merge_failure(said))
    assert scrub("hf_token and hf_hub_download stay") == "hf_token and hf_hub_download stay"
