"""The pages of campaigns in a real browser: a real cycle, its gate and its lineage, and a campaign that is steered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import looks
from tests.browser.conftest import PATIENCE_MS
from tests.browser.test_day import until_long
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.campaign import CampaignDetail, CycleView
from tunefleet.spec.documents.campaign_document import CampaignSpec

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(900)]

SMALL: dict[str, Any] = {
    "enabled": True,
    "provider": "local",
    "model_repo": "builtin:gsm8k-llama-2m",
    "datasets": [{"path": "builtin:gsm8k", "field_instruction": "question", "field_output": "answer"}],
    "run_intervals": {"min_days": 0, "max_days": 0, "min_hours": 0, "max_hours": 0},
    "samples_per_training": 32,
    "lora": {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear"},
    "training": {"max_steps": 4, "batch_size": 8, "learning_rate": 3e-3, "max_seq_length": 64, "save_strategy": "no"},
    "evaluate": {"max_seq_length": 64, "max_rows": 8},
}


def start(client: Client, name: str, **more: Any) -> str:
    (applied,) = client.campaigns.apply({name: CampaignSpec.model_validate({**SMALL, **more})})
    return applied.id


def step(cycle: CycleView, name: str) -> dict[str, Any]:
    (found,) = [each for each in cycle.steps if each.name == name]
    assert found.outcome is not None
    return found.outcome


def text(value: float) -> str:
    """Write a number as the page does."""
    return f"{float(f'{value:.4g}'):g}"


def interval(of: dict[str, Any]) -> str:
    return f"[{text(of['low'])}, {text(of['high'])}]"


def panel(page: Page, title: str) -> Locator:
    return page.locator(".panel", has=page.get_by_role("heading", name=re.compile(f"^{title}")))


@pytest.fixture(scope="module")
def told(fleet: LocalFleet) -> Iterator[list[str]]:
    """Names of campaigns that are to be stopped at the end."""
    names: list[str] = []
    yield names
    with Client(fleet.url, fleet.key) as client:
        for name in names:
            client.campaigns.stop(name)


def test_a_cycle_is_watched_to_its_gate_and_its_model_promoted_in_spite_of_it(
    entered: Page, client: Client, told: list[str], axe: str
) -> None:
    entered.get_by_role("link", name="Campaigns").click()
    expect(entered.get_by_text("No campaigns yet")).to_be_visible()
    told.append("problems")
    start(
        client,
        "problems",
        gate=[{"min_gain": 50}, {"metric": "accuracy", "max_drop": 1}],
        budget={"cost_per_task": 2, "max_cost": 2},
    )
    entered.get_by_role("link", name="problems").click()
    entered.evaluate("window.stayed = true")

    # The cycle goes on by itself, and then waits for a person: the budget is spent.
    expect(entered.locator("h1 + .status")).to_have_text("held", timeout=PATIENCE_MS)
    found: CampaignDetail = client.campaigns.get("problems")
    assert (found.status, found.spent) == ("held", 2.0)
    assert found.reason is not None
    expect(entered.locator(".fault").first).to_have_text(found.reason)
    expect(panel(entered, "Spent").locator("strong")).to_have_text("2")
    first = next(each for each in found.cycle_list if each.number == 0)
    assert first.status == "completed"

    # What decided, with the numbers of the server.
    entered.get_by_role("link", name="cycle 0", exact=True).click()
    assert entered.url.endswith("?cycle=0")
    verdict, chosen = step(first, "gate"), step(first, "select")["evaluation"]
    assert verdict["passed"] is False
    shown = panel(entered, "Cycle 0")
    expect(shown).to_contain_text(verdict["reason"])
    expect(shown).to_contain_text("gate not passed")
    measured = chosen["metrics"]["loss"]
    expect(shown).to_contain_text(f"{text(measured['value'])}{interval(measured)}")
    gain = verdict["against"]["base"]
    expect(shown).to_contain_text(f"{text(gain['value'])}{interval(gain)}")
    kept = next(each for each in verdict["metrics"] if each["metric"] == "accuracy")
    assert kept["passed"] is True
    expect(shown.locator("[data-gate] th").filter(has_text="accuracy")).to_be_visible()
    expect(shown).to_contain_text(f"{text(chosen['metrics']['accuracy']['value'])}")
    legend = entered.locator("figure.plot .legend")
    expect(legend).to_contain_text(f"this version {text(measured['value'])} {interval(measured)}")

    looks.check(entered, axe)

    # Its model is not the one to go on from, until somebody says so.
    entered.get_by_role("region", name="Versions").get_by_role("button", name="Promote").click()
    entered.get_by_role("dialog").get_by_role("button", name="Promote").click()
    expect(entered.get_by_text("version 1 promoted", exact=True)).to_be_visible()
    assert client.campaigns.get("problems").promoted == 1
    assert client.models.get("problems").stage == "promoted"

    # Each thing that a task has made leads to that task.
    nodes = entered.locator("a.stage")
    leads = {
        "Chunk": step(first, "data")["chunk"]["task_id"],
        "Training": step(first, "submit")["ticket"],
        "Evaluation": chosen["task_id"],
        "Merged model": step(first, "merge")["task_id"],
    }
    for title, task_id in leads.items():
        expect(nodes.filter(has_text=title)).to_have_attribute("href", f"/ui/tasks/{task_id}")
    assert entered.evaluate("window.stayed") is True
    nodes.filter(has_text="Training").click()
    entered.wait_for_url(f"**/ui/tasks/{leads['Training']}")


def test_a_campaign_is_paused_resumed_retried_and_stopped_by_the_page(
    entered: Page, client: Client, told: list[str]
) -> None:
    id_ = start(client, "endless", training={**SMALL["training"], "max_steps": 100_000, "batch_size": 1})
    told.append("endless")
    entered.goto(f"/ui/campaigns/{id_}")
    status, activity = entered.locator("h1 + .status"), entered.locator("[data-activity]")

    # What it does moves without a reload.
    expect(activity).to_contain_text("of 100,000 steps", timeout=PATIENCE_MS)
    before = activity.inner_text()
    until_long(lambda: activity.inner_text() != before)

    for button, after in (("Pause", "paused"), ("Resume", "active")):
        entered.get_by_role("button", name=button, exact=True).click()
        expect(status).to_have_text(after)
        assert client.campaigns.get(id_).status == after

    # The provider's task fails; after that the cycle is tried again because somebody wants it.
    ticket = step(client.campaigns.get(id_).cycle_list[0], "submit")["ticket"]
    client.tasks.cancel(ticket)
    entered.get_by_role("toolbar", name="Controls").get_by_role("button", name="Retry").wait_for(timeout=PATIENCE_MS)
    expect(panel(entered, "Cycle 0").locator(".fault")).to_contain_text(ticket)
    entered.get_by_role("toolbar", name="Controls").get_by_role("button", name="Retry").click()
    entered.get_by_role("dialog").get_by_role("button", name="Retry").click()
    until_long(lambda: client.campaigns.get(id_).cycle_list[-1].retried == 1)

    entered.get_by_role("button", name="Stop", exact=True).click()
    entered.get_by_role("button", name="Stop campaign").click()
    expect(status).to_have_text("stopped")
    assert client.campaigns.get(id_).status == "stopped"
    expect(entered.get_by_role("button", name="Start", exact=True)).to_be_visible()


def test_a_viewer_sees_a_campaign_and_steers_nothing(looking: Page, client: Client, told: list[str]) -> None:
    start(client, "quiet", enabled=False)
    looking.goto("/ui/campaigns/quiet")
    expect(looking.locator("h1 + .status")).to_have_text("paused")
    expect(looking.get_by_text("No cycles yet")).to_be_visible()
    expect(looking.get_by_role("toolbar", name="Controls")).to_have_count(0)
    looking.goto("/ui/campaigns/nobodys")
    expect(looking.get_by_text("Not found", exact=True)).to_be_visible()
