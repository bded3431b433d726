"""The provider `gradients` against a double that speaks its contract over real HTTP, and bills."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from tests.fakes.gradients_api import ACCOUNT, KEY, Fault, Gradients, gradients
from tunefleet.campaign.contract import Base, CycleFailed, Material, Order, StepFailed
from tunefleet.campaign.providers import chosen, find, gradients_wire
from tunefleet.campaign.providers.gradients import MOST_CANDIDATES, GradientsProvider, leads_to, make
from tunefleet.campaign.publish_targets import repo_of
from tunefleet.client.external.third_party_api import NotArrivedError, Patience, Service
from tunefleet.errors import AuthError, MachineError, UnreachableError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import CampaignSpec

CREATE = "/v1/tasks/create"
STORE = "http://store.example:9000/bucket"
NUMBERS = {"quality_score": 1.0, "test_loss": 1.5, "synth_loss": 1.6, "rank": 1, "score_reason": "good"}


@pytest.fixture
def api() -> Iterator[Gradients]:
    with gradients() as state:
        yield state


class Campaigns:
    """What our own server says of earlier orders."""

    def __init__(self) -> None:
        self.tickets: list[str] = []

    async def list(self) -> Any:
        return SimpleNamespace(items=[SimpleNamespace(id="camp-1")])

    async def get(self, _: str) -> Any:
        steps = [
            SimpleNamespace(name=StepName.SUBMIT, outcome={"provider": "gradients", "ticket": each})
            for each in self.tickets
        ]
        return SimpleNamespace(cycle_list=[SimpleNamespace(steps=steps)])


def provider_of(url: str, campaigns: Campaigns | None = None, **how: Any) -> GradientsProvider:
    key = SecretStr(how.pop("key", KEY))
    patience = Patience(tries=3, first_s=0.01, longest_s=0.02)
    service = Service("Gradients", url, key, timeout_s=how.pop("timeout_s", 5.0), patience=patience)
    client: Any = SimpleNamespace(campaigns=campaigns or Campaigns())
    return GradientsProvider(service, client, **{"account": ACCOUNT, "settle_s": 0.01, **how})


@pytest.fixture
async def provider(api: Gradients) -> AsyncIterator[GradientsProvider]:
    made = provider_of(api.url)
    yield made
    await made.close()


def order(number: int = 0, task_type: str = "InstructText", **more: Any) -> Order:
    dataset: dict[str, Any] = {"name": "org/rows", "field_instruction": "q", "field_output": "a"}
    if task_type == "Chat":
        dataset = {"name": "org/rows"}
    spec = CampaignSpec.model_validate({"model_repo": "org/model", "datasets": [dataset], "task_type": task_type})
    key = f"camp-{time.time_ns()}/{number}"
    name = f"tunefleet-campaigns/{key}/0123456789abcdef_dataset.json"
    link = f"{STORE}/{name}?X-Amz-Signature=secret"
    uploads = {role: f"{STORE}/{name}.{role}?X-Amz-Signature=secret" for role in gradients_wire.FIXED}
    if task_type == "InstructTextWithFixedDatasets":
        name += ".training_data"
    data = Material("task", "artifact", "0123456789abcdef", 10, url=link, object_key=name)
    given = {"hours": 8.0, "base": Base("org/model"), **more}
    return Order(key=key, name="daily-0", data=data, task_type=spec.task_type, spec=spec, uploads=uploads, **given)


async def test_an_order_says_what_the_contract_asks_for(api: Gradients, provider: GradientsProvider) -> None:
    plain, chat, fixed = order(), order(1, "Chat", hours=0.5), order(2, "InstructTextWithFixedDatasets")
    tickets = [await provider.submit(each) for each in (plain, chat, fixed)]
    assert [task["id"] for task in api.tasks] == tickets
    assert [task["path"] for task in api.tasks] == [CREATE, f"{CREATE}_chat", f"{CREATE}_with_fixed_datasets"]
    fields = {"field_instruction": "instruction", "field_input": "input", "field_output": "output"}
    assert api.tasks[0]["said"] == {
        "model_repo": "org/model", "ds_repo": plain.data.url, "hours_to_complete": 8, "file_format": "s3", **fields
    }  # fmt: skip
    assert isinstance(api.tasks[0]["said"]["hours_to_complete"], int), "older servers take no fraction"
    assert api.tasks[1]["said"] == {
        "model_repo": "org/model", "ds_repo": chat.data.url, "hours_to_complete": 0.5, "file_format": "s3",
        "chat_template": "chatml", "chat_column": "conversations", "chat_role_field": "role",
        "chat_content_field": "content", "chat_user_reference": "user", "chat_assistant_reference": "assistant",
    }  # fmt: skip
    assert api.tasks[2]["said"] == {
        "model_repo": "org/model", "ds_repo": None, "hours_to_complete": 8, "file_format": "s3", **fields,
        **{role: fixed.uploads[role] for role in ("training_data", "synthetic_data", "test_data")},
    }  # fmt: skip
    api.says_files = True
    assert [await provider.find(each) for each in (plain, chat, fixed)] == tickets
    assert await provider.find(order(3)) is None


@pytest.mark.parametrize("status", ["training", "success"])
async def test_a_task_that_never_says_its_rows_is_not_ordered_again_even_once_it_is_over(
    api: Gradients, provider: GradientsProvider, status: str
) -> None:
    api.statuses, now = [status], time.time()
    wanted = order(0, "InstructTextWithFixedDatasets", since=now)
    await provider.submit(wanted)
    with pytest.raises(StepFailed, match=f"does not show the rows of task {api.tasks[0]['id']}"):
        await provider.find(wanted)
    later = order(1, "InstructTextWithFixedDatasets", since=now + 7200)
    assert await provider.find(later) is None, "that task was there long before this order"


UNCERTAIN = [
    Fault(CREATE, 500, bills=True),
    Fault(CREATE, 503, bills=True, headers={"Retry-After": "0"}),
    Fault(CREATE, how="drop", bills=True),
    Fault(CREATE, how="hang", seconds=0.6, bills=True),
    Fault(CREATE, 200, body={"success": True, "task_id": None}, bills=True),
]


@pytest.mark.parametrize("fault", UNCERTAIN, ids=["500", "503", "cut off", "timeout", "no id"])
async def test_an_answer_that_is_lost_after_billing_costs_no_second_task(api: Gradients, fault: Fault) -> None:
    provider, wanted = provider_of(api.url, timeout_s=0.3), order()
    api.faults.append(fault)
    with pytest.raises(UnreachableError):
        await provider.submit(wanted)
    assert api.count("POST", CREATE) == 1, "a request that may have been carried out is not sent again"
    assert await provider.find(wanted) == api.tasks[0]["id"]
    await provider.close()


REFUSALS: list[tuple[int, Any, type[Exception], str]] = [
    (401, {"detail": "Invalid API key"}, AuthError, "GRADIENTS_API_KEY"),
    (402, {"detail": "Insufficient balance"}, StepFailed, "Insufficient balance. Add credit"),
    (422, {"detail": [{"loc": ["body", "ds_repo"], "msg": "Field required", "input": KEY}]}, CycleFailed, "ds_repo"),
    (429, {"detail": "Slow down"}, StepFailed, "accepts no more orders for now: Slow down"),
    (404, {"detail": "Not Found"}, StepFailed, "TUNEFLEET_GRADIENTS_URL"),
    (200, {"success": False, "task_id": None, "message": "queue full"}, StepFailed, "queue full"),
]


@pytest.mark.parametrize(("status", "body", "error", "says"), REFUSALS, ids=lambda each: str(each)[:12])
async def test_a_refusal_has_its_own_sentence_and_may_be_ordered_again(
    api: Gradients, status: int, body: Any, error: type[Exception], says: str
) -> None:
    # Whose account it is nobody knows: a refused first order must not be stuck for that.
    provider, wanted = provider_of(api.url, account=None), order()
    api.faults.append(Fault(CREATE, status, body=body))
    with pytest.raises(error, match=says) as raised:
        await provider.submit(wanted)
    assert KEY not in str(raised.value)
    assert api.count("POST", CREATE) == 1
    assert await provider.find(wanted) is None
    await provider.submit(wanted)
    assert len(api.tasks) == 1
    with pytest.raises(StepFailed, match="TUNEFLEET_GRADIENTS_ACCOUNT"):
        await provider.find(wanted)
    await provider.close()


async def test_a_question_that_is_refused_gives_no_order_up(api: Gradients, provider: GradientsProvider) -> None:
    ticket = await provider.submit(order())
    for place, ask in ((f"/v1/tasks/{ticket}", provider.look(ticket)), ("/v1/tasks/account/", provider.find(order()))):
        api.faults.append(Fault(place, 422, method="GET", body={"detail": "value is not a valid uuid"}))
        with pytest.raises(StepFailed, match="returned 422") as raised:
            await ask
        assert not isinstance(raised.value, CycleFailed)


async def test_a_request_that_nobody_took_is_sent_again(api: Gradients) -> None:
    wanted, dead = order(), provider_of("http://127.0.0.1:9", account=None)
    with pytest.raises(NotArrivedError):
        await dead.submit(wanted)
    assert await dead.find(wanted) is None
    await dead.close()
    living = provider_of(api.url)
    assert await living.submit(wanted) == api.tasks[0]["id"]
    await living.close()


async def test_the_account_is_learnt_from_an_earlier_order(api: Gradients) -> None:
    campaigns = Campaigns()
    provider, first, second = provider_of(api.url, campaigns, account=None), order(0), order(1)
    campaigns.tickets.append(await provider.submit(first))
    assert await provider.find(second) is None
    ticket = await provider.submit(second)
    assert await provider.find(second) == ticket
    await provider.close()


async def test_an_order_is_found_behind_many_others(api: Gradients, provider: GradientsProvider) -> None:
    wanted = order()
    ticket = await provider.submit(wanted)
    for _ in range(230):
        api.create(CREATE, {**api.tasks[0]["said"], "ds_repo": f"{STORE}/other.json?X=1"})
    assert await provider.find(wanted) == ticket
    assert api.count("GET", "/v1/tasks/account/") == 3


async def test_nothing_is_ordered_while_a_task_hides_its_rows(api: Gradients) -> None:
    campaigns = Campaigns()
    provider, earlier, wanted = provider_of(api.url, campaigns), order(0), order(1)
    api.hides = True
    campaigns.tickets.append(await provider.submit(earlier))
    assert await provider.find(wanted) is None, "that one is known to be another order's"
    ticket = await provider.submit(wanted)
    with pytest.raises(StepFailed, match=f"does not show the rows of task {ticket}"):
        await provider.find(wanted)
    api.statuses = ["success"]
    assert await provider.find(wanted) == ticket
    await provider.close()


async def test_a_task_is_followed_whatever_its_status_is_called(
    api: Gradients, provider: GradientsProvider, caplog: pytest.LogCaptureFixture
) -> None:
    api.statuses = ["pending", "awaiting_model_prep", "awaiting_model_prep", "training", "success"]
    api.hours = 0.5
    api.hotkeys = [
        {"hotkey": "h1", "repo": "miner/one", **NUMBERS, "new_field": [1]},
        {"hotkey": "h2", "repo": "miner/two", **NUMBERS, "test_loss": None, "quality_score": None, "synth_loss": None},
        {"hotkey": "h3", "repo": "miner/three", **NUMBERS, "test_loss": float("nan"), "synth_loss": "0.5"},
        {"hotkey": "h4", "repo": None, **NUMBERS},
        {"hotkey": "h5", "repo": "miner/five", **NUMBERS, "test_loss": 0.7},
    ]
    api.breakdown = [{"hotkey": "h2", "quality_score": 0.9, "test_loss": 1.1, "synth_loss": None, "score_reason": ""}]
    ticket = await provider.submit(order())
    with caplog.at_level(logging.WARNING):
        seen = [await provider.look(ticket) for _ in range(5)]
    assert [each.state for each in seen] == ["running"] * 4 + ["succeeded"]
    assert [each.detail for each in seen[:2]] == ["pending", "awaiting_model_prep"]
    assert sum("awaiting_model_prep" in line for line in caplog.messages) == 1
    made = seen[-1].candidates
    assert [(each.ref, each.test_loss) for each in made] == [
        ("miner/five", 0.7), ("miner/two", 1.1), ("miner/one", 1.5), ("miner/three", None)
    ]  # fmt: skip
    assert made[1].score == 0.9
    assert made[3].synth_loss == 0.5
    assert seen[-1].cost_s == 5400.0


async def test_of_many_models_the_most_promising_are_measured(api: Gradients, provider: GradientsProvider) -> None:
    api.statuses = ["success"]
    api.hotkeys = [
        {"hotkey": f"h{number}", "repo": f"miner/{number}", **NUMBERS, "test_loss": 20.0 - number}
        for number in range(12)
    ]
    found = await provider.look(await provider.submit(order()))
    assert [each.ref for each in found.candidates] == [
        f"miner/{number}" for number in range(11, 11 - MOST_CANDIDATES, -1)
    ]
    assert "12 submissions" in found.detail


@pytest.mark.parametrize("status", sorted(gradients_wire.FAILURES))
async def test_a_task_that_failed_says_how(api: Gradients, provider: GradientsProvider, status: str) -> None:
    api.statuses = [status]
    found = await provider.look(await provider.submit(order()))
    assert (found.state, found.detail) == ("failed", status)


async def test_a_task_that_vanished_is_not_ordered_anew(api: Gradients, provider: GradientsProvider) -> None:
    ticket = await provider.submit(order())
    api.faults.append(Fault(f"/v1/tasks/{ticket}", 404, method="GET", body={"detail": "Task not found."}))
    with pytest.raises(UnreachableError, match="another one does"):
        await provider.look(ticket)
    assert (await provider.look(ticket)).state == "running"
    api.tasks.clear()
    for _ in range(2):
        with pytest.raises(StepFailed, match=r"does not know task .*pay for it again"):
            await provider.look(ticket)


async def test_a_wrong_address_neither_loses_a_task_nor_counts_as_its_end(
    api: Gradients, provider: GradientsProvider
) -> None:
    ticket = await provider.submit(order())
    elsewhere = provider_of(f"{api.url}/of/somebody/else")
    with pytest.raises(StepFailed, match="TUNEFLEET_GRADIENTS_URL"):
        await elsewhere.look(ticket)
    with pytest.raises(StepFailed, match="TUNEFLEET_GRADIENTS_URL"):
        await elsewhere.cancel(ticket)
    await elsewhere.close()
    await provider.cancel("00000000-0000-0000-0000-000000000000")
    assert api.deleted == []


async def test_a_look_is_patient(api: Gradients, provider: GradientsProvider) -> None:
    ticket = await provider.submit(order())
    place = f"/v1/tasks/{ticket}"
    api.faults += [Fault(place, 429, method="GET", headers={"Retry-After": "0"}), Fault(place, 500, method="GET")]
    assert (await provider.look(ticket)).detail == "pending"
    api.faults += [Fault(place, how="drop", method="GET")] * 3
    with pytest.raises(UnreachableError):
        await provider.look(ticket)
    assert (await provider.look(ticket)).detail == "training"


async def test_a_task_that_goes_on_is_deleted_and_one_that_is_over_stays(
    api: Gradients, provider: GradientsProvider
) -> None:
    ticket = await provider.submit(order())
    await provider.cancel(ticket)
    assert api.deleted == [ticket]
    api.statuses = ["success"]
    await provider.cancel(ticket)
    assert api.deleted == [ticket]


async def test_the_key_is_in_no_text(api: Gradients, caplog: pytest.LogCaptureFixture) -> None:
    provider = provider_of(api.url, key="another-key-987654")
    with caplog.at_level(logging.DEBUG), pytest.raises(AuthError) as raised:
        await provider.submit(order())
    said = " ".join([*caplog.messages, str(raised.value), repr(raised.value), repr(provider), repr(vars(provider))])
    assert "another-key-987654" not in said
    assert "X-Amz-Signature" not in said
    await provider.close()


def test_what_is_not_on_the_hub_is_not_ordered() -> None:
    assert repo_of(Base("org/model"), "Gradients") == "org/model"
    assert repo_of(Base("daily-v3", task_id="t", version=3, digest="d", url="hf://me/daily"), "Gradients") == "me/daily"
    for base in (Base("daily-v3", task_id="t", version=3, digest="d"), Base("builtin:gsm8k-llama-2m")):
        with pytest.raises(CycleFailed, match=r"publish\.to"):
            repo_of(base, "Gradients")


def test_a_link_leads_to_an_object_however_it_is_written() -> None:
    assert leads_to("https://host/bucket/a/0/x.json?sig=1", "a/0/x.json")
    assert leads_to("https://bucket.host/a%2F0/x.json", "a/0/x.json")
    assert not leads_to("https://host/bucket/a/10/x.json", "a/1/x.json")
    assert not leads_to("https://host/bucket/ba/0/x.json", "a/0/x.json")
    assert not leads_to("Hidden", "a/0/x.json")
    assert not leads_to(None, "a/0/x.json")


def test_a_key_makes_it_the_provider_of_campaigns_that_name_none() -> None:
    spec = order().spec
    keyed = CampaignSettings(gradients_key=SecretStr(KEY))
    assert chosen(spec, keyed) == ("gradients", "GRADIENTS_API_KEY is set")
    assert chosen(spec, CampaignSettings())[0] == "local"
    assert find("gradients") is make
    with pytest.raises(MachineError, match="GRADIENTS_API_KEY"):
        make(CampaignSettings(), SimpleNamespace())  # type: ignore[arg-type]
