"""A user's day in a real browser: what the page shows is what the server knows, and what is clicked happens."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PATIENCE_MS, PATIENCE_S
from tests.integration.server.support import until
from tunefleet.cli.fleet import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(900)]
STEPS = 100_000


def loss_shown(page: Page) -> float:
    """Return what stands in the legend of the chart of the loss."""
    chart = page.locator("figure.chart", has=page.get_by_role("heading", name="Loss", exact=True))
    return float(chart.locator(".legend b").first.inner_text())


def status_of(client: Client, task_id: str, status: str) -> None:
    until_long(lambda: client.tasks.get(task_id).status == status)


def until_long(condition: Callable[[], object]) -> None:
    """Like `until`, with the patience that a training on a busy machine takes."""
    for _ in range(int(PATIENCE_S // 60)):
        try:
            until(condition)
        except AssertionError:
            continue
        return
    until(condition)


def test_a_training_from_the_gallery_is_watched_and_steered(page: Page, fleet: LocalFleet, client: Client) -> None:
    page.goto("/ui/new")
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("key")
    page.get_by_label("API key").fill(fleet.key)
    page.get_by_role("button", name="Log in").click()

    # From the gallery: the address that was asked for came back after the log-in.
    page.get_by_role("button", name=re.compile("^LoRA fine-tuning")).click()
    page.get_by_text("Where it would run").wait_for()
    for label, value in (("Steps", str(STEPS)), ("Batch size", "1"), ("Longest sequence", "64")):
        page.get_by_label(label).fill(value)
        page.get_by_label(label).press("Enter")
    expect(page.locator(".cm-content")).to_contain_text(f"max_steps: {STEPS}")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/ui/tasks/task-*")
    task_id = page.url.rpartition("/")[2]
    spec = client.tasks.get(task_id).spec
    assert (spec["training"]["max_steps"], spec["training"]["batch_size"]) == (STEPS, 1)

    # The loss moves by itself, and is what the server has.
    page.locator("figure.chart").first.wait_for(timeout=PATIENCE_MS)
    before = loss_shown(page)
    until_long(lambda: loss_shown(page) != before)
    page.get_by_role("button", name="Pause", exact=True).click()
    status_of(client, task_id, "paused")
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible(timeout=PATIENCE_MS)
    points = client.tasks.metrics(task_id, names=["loss"]).points
    newest = [point.values["loss"] for point in points if "loss" in point.values][-1]
    until(lambda: loss_shown(page) == pytest.approx(newest, rel=1e-3))
    paused_at = points[-1].step

    page.get_by_role("button", name="Resume", exact=True).click()
    status_of(client, task_id, "running")
    page.get_by_label("New learning rate").fill("0.0007", timeout=PATIENCE_MS)
    page.get_by_role("button", name="Set", exact=True).click()
    commands = page.get_by_role("list", name="Commands")
    expect(commands.locator("li", has_text="Set").first).to_contain_text("applied at step", timeout=PATIENCE_MS)
    told = [each for each in client.tasks.commands(task_id) if each.command == "set"]
    assert [(each.data, each.state) for each in told] == [({"learning_rate": 0.0007}, "applied")]
    assert told[0].step is not None
    assert told[0].step >= paused_at

    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop and save").click()
    status_of(client, task_id, "completed")
    assert client.tasks.get(task_id).reason == "stopped_early"
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    page.get_by_role("tab", name="Checkpoints and artifacts").click()
    page.get_by_text("final_lora").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="adapter_model.safetensors").click()
    artifact = client.artifacts.list(task_id=task_id, kind="adapter").items[0]
    sizes = {file.path: file.size_bytes for file in client.artifacts.get(artifact.id).files}
    assert download.value.path().stat().st_size == sizes["adapter_model.safetensors"]

    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    assert page.request.get("/api/v1/tasks").status == 401
