"""A user's day in a real browser: what the page shows is what the server knows, and what is clicked happens."""

from __future__ import annotations

import csv
import hashlib
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from safetensors import numpy as safetensors

from tests.browser.conftest import PATIENCE_MS, PATIENCE_S
from tests.integration.api.support import until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.api import CommandView

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(900)]
STEPS = 100_000
CHANGED = {"lora.r": 4, "training.learning_rate": 0.001, "training.max_steps": 2}


@pytest.fixture(scope="module")
def fleet(own_fleet: LocalFleet) -> LocalFleet:
    return own_fleet


def loss_shown(page: Page) -> float:
    """Return what stands in the legend of the chart of the loss."""
    chart = page.locator("figure.chart", has=page.get_by_role("heading", name="Loss", exact=True))
    return float(chart.locator(".legend b").first.inner_text())


def losses_drawn(page: Page) -> dict[int, float]:
    """Return step → loss of the points that the charts have, as they are downloaded from there."""
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    with download.value.path().open(encoding="utf-8") as lines:
        return {int(row["step"]): float(row["loss"]) for row in csv.DictReader(lines) if row["loss"]}


def losses_known(client: Client, task_id: str) -> dict[int, float]:
    """Return step → loss as the server has them."""
    points = client.tasks.metrics(task_id, names=["loss"]).points
    return {point.step: float(point.values["loss"]) for point in points}


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


def outcome(page: Page, client: Client, task_id: str, command: str) -> CommandView:
    """Return what the server says of the one command of a name, once the page says the same of its id."""
    (told,) = (each for each in client.tasks.commands(task_id) if each.command == command)
    row = page.get_by_role("list", name="Commands").locator(f"li[title^='{told.id}']")
    expect(row).to_contain_text(re.compile(r"(applied|saved) at step"), timeout=PATIENCE_MS)
    (settled,) = (each for each in client.tasks.commands(task_id) if each.id == told.id)
    assert settled.step is not None
    assert f"{settled.step:,}" in row.inner_text()
    return settled


@pytest.mark.story
def test_a_training_from_the_gallery_is_watched_and_steered(page: Page, fleet: LocalFleet, client: Client) -> None:
    page.goto("/ui/new")
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("key")
    page.get_by_label("API key").fill(fleet.key)
    page.get_by_role("button", name="Log in").click()

    # From the gallery: the address that was asked for came back after the log-in.
    page.get_by_role("button", name=re.compile("^LoRA fine-tuning")).click()
    page.get_by_role("heading", name="Placement").wait_for()
    for label, value in (("Steps", str(STEPS)), ("Batch size", "1"), ("Max sequence length", "64")):
        page.get_by_label(label).fill(value)
        page.get_by_label(label).press("Enter")
    expect(page.locator(".cm-content")).to_contain_text(f"max_steps: {STEPS}")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/ui/tasks/task-*")
    task_id = page.url.rpartition("/")[2]
    spec = client.tasks.get(task_id).spec
    assert (spec["training"]["max_steps"], spec["training"]["batch_size"]) == (STEPS, 1)

    # The loss moves by itself, also over a break: after it, the charts have every point that the server has.
    page.locator("figure.chart").first.wait_for(timeout=PATIENCE_MS)
    before = loss_shown(page)
    until_long(lambda: loss_shown(page) != before)
    kill_server(page, fleet)
    after = losses_known(client, task_id)
    until_long(lambda: losses_known(client, task_id).keys() > after.keys())
    until_long(lambda: after.items() <= losses_drawn(page).items())
    assert losses_drawn(page).items() <= losses_known(client, task_id).items()

    # Nobody looks: that is nothing to the training.
    commands, attempts = client.tasks.commands(task_id), client.tasks.get(task_id).attempts
    session, address = page.context, page.url
    page.close()
    steps = len(losses_known(client, task_id))
    until_long(lambda: len(losses_known(client, task_id)) > steps)
    now = client.tasks.get(task_id)
    assert (now.status, now.attempts, client.tasks.commands(task_id)) == ("running", attempts, commands)
    page = session.new_page()
    page.goto(address)
    page.locator("figure.chart").first.wait_for(timeout=PATIENCE_MS)

    page.get_by_role("button", name="Pause", exact=True).click()
    status_of(client, task_id, "paused")
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible(timeout=PATIENCE_MS)
    known = losses_known(client, task_id)
    until(lambda: loss_shown(page) == pytest.approx(known[max(known)], rel=1e-3))
    assert losses_drawn(page) == known
    paused = outcome(page, client, task_id, "pause")

    page.get_by_role("button", name="Resume", exact=True).click()
    status_of(client, task_id, "running")
    page.get_by_label("New learning rate").fill("0.0007", timeout=PATIENCE_MS)
    page.get_by_role("button", name="Set", exact=True).click()
    until_long(lambda: any(each.command == "set" for each in client.tasks.commands(task_id)))
    told = outcome(page, client, task_id, "set")
    assert (told.data, told.state) == ({"learning_rate": 0.0007}, "applied")
    assert (told.step or 0) >= (paused.step or 0)

    save_and_evaluate(page, client, task_id)
    seen_at_a_glance(page, client, task_id)

    page.get_by_role("button", name="Stop and keep").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop and keep").click()
    status_of(client, task_id, "completed")
    assert client.tasks.get(task_id).reason == "stopped_early"
    expect(page.get_by_role("button", name="Retry")).to_be_visible()

    download_adapter(page, client, task_id)
    resume_from_a_checkpoint(page, client, task_id)
    compare_two(page, client, task_id)

    cookies = {each["name"]: each["value"] for each in page.context.cookies()}
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    assert page.request.get("/api/v1/tasks").status == 401
    # Not only forgotten by the browser: the session is over.
    kept = "; ".join(f"{name}={value}" for name, value in cookies.items())
    assert page.request.get("/api/v1/tasks", headers={"Cookie": kept}).status == 401


def save_and_evaluate(page: Page, client: Client, task_id: str) -> None:
    """What a command has brought about is where it is looked for."""
    page.get_by_role("button", name="Save checkpoint").click()
    until_long(lambda: any(each.command == "save_checkpoint" for each in client.tasks.commands(task_id)))
    applied = outcome(page, client, task_id, "save_checkpoint")
    row = page.get_by_role("list", name="Commands").locator(f"li[title^='{applied.id}']")
    expect(row).to_contain_text("saved at step", timeout=PATIENCE_MS)
    (saved,) = (each for each in client.tasks.commands(task_id) if each.id == applied.id)
    assert saved.state == "durable"
    # The outcome comes by the link, the checkpoint by the journal: either may be there first.
    until_long(lambda: saved.step in {each.step for each in client.tasks.checkpoints(task_id)})
    page.get_by_role("button", name="Evaluate", exact=True).click()
    # This one has no evaluation on its way: the command says so, and the training goes on.
    commands = page.get_by_role("list", name="Commands").locator("li", has_text="Evaluate")
    expect(commands).to_contain_text("failed", timeout=PATIENCE_MS)
    (refused,) = (each for each in client.tasks.commands(task_id) if each.command == "evaluate")
    assert refused.state == "failed"
    assert "eval_strategy" in (refused.message or "")
    expect(commands).to_contain_text(refused.message or "?")
    assert client.tasks.get(task_id).status == "running"


def seen_at_a_glance(page: Page, client: Client, task_id: str) -> None:
    """The overview has a running task's loss, how far it is, and how long it will take."""
    page.get_by_role("link", name="Overview").click()
    row = page.get_by_role("listitem").filter(has=page.locator(f"a[href$='{task_id}']"))
    line = row.get_by_role("img", name=re.compile("oss"))
    expect(line).to_be_visible(timeout=PATIENCE_MS)
    before = line.locator("path").get_attribute("d")
    expect(line.locator("path")).not_to_have_attribute("d", before or "?", timeout=PATIENCE_MS)
    progress = client.tasks.get(task_id).progress
    assert progress is not None
    assert progress.eta_s is not None
    expect(row).to_contain_text(f"/ {progress.max_steps:,}")
    expect(row).to_contain_text(re.compile(r"\d+[smhd] left"))
    page.go_back()


def kill_server(page: Page, fleet: LocalFleet) -> None:
    """Kill the server while the page is open, and wait until it is back."""
    pid = fleet.pid("server")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    banner = page.get_by_text("Connection to the server lost")
    expect(banner).to_be_visible(timeout=PATIENCE_MS)
    until(lambda: fleet.pid("server") not in {None, pid})
    expect(banner).to_have_count(0, timeout=PATIENCE_MS)


def download_adapter(page: Page, client: Client, task_id: str) -> None:
    """The file that the page hands out is the one that the API knows, and an adapter."""
    page.get_by_role("tab", name="Checkpoints and artifacts").click()
    page.get_by_text("final_lora").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="adapter_model.safetensors").click()
    found = download.value.path().read_bytes()
    artifact = client.artifacts.list(task_id=task_id, kind="adapter").items[0]
    (file,) = (each for each in client.artifacts.get(artifact.id).files if each.path == "adapter_model.safetensors")
    assert hashlib.sha256(found).hexdigest() == file.digest.removeprefix("sha256:")
    assert any("lora_A" in name for name in safetensors.load(found))


def resume_from_a_checkpoint(page: Page, client: Client, task_id: str) -> None:
    """A training goes on as a new task behind the checkpoint that was clicked."""
    kept = client.tasks.checkpoints(task_id)[-1]
    row = page.get_by_role("row").filter(has=page.get_by_role("cell", name=f"{kept.step:,}", exact=True))
    row.get_by_role("button", name="Resume from here").click()
    page.wait_for_url(lambda url: not url.partition("?")[0].endswith(task_id))
    made = client.tasks.get(page.url.partition("?")[0].rpartition("/")[2])
    assert made.parent_task_id == task_id
    until_long(lambda: losses_known(client, made.id))
    assert min(losses_known(client, made.id)) > kept.step
    page.get_by_role("button", name="Discard", exact=True).click(timeout=PATIENCE_MS)
    page.get_by_role("dialog").get_by_role("button", name="Discard").click()
    status_of(client, made.id, "cancelled")
    assert client.tasks.get(made.id).reason == "aborted"

    # What is done again is cancelled while it runs: it ends behind its step.
    page.get_by_role("button", name="Retry").click()
    page.wait_for_url(lambda url: not url.partition("?")[0].endswith(made.id))
    again = page.url.partition("?")[0].rpartition("/")[2]
    status_of(client, again, "running")
    page.get_by_role("button", name="Cancel", exact=True).click(timeout=PATIENCE_MS)
    page.get_by_role("dialog").get_by_role("button", name="Cancel run").click()
    status_of(client, again, "cancelled")
    assert client.tasks.get(again).reason == "cancelled_by_user"
    expect(page.locator(".status.cancelled").first).to_be_visible()


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return dotted path → value."""
    if not isinstance(value, dict):
        return {path: value}
    return {name: leaf for key in value for name, leaf in leaves(value[key], f"{path}.{key}".strip(".")).items()}


def compare_two(page: Page, client: Client, task_id: str) -> None:
    """What differs is what the specs differ in, beside both curves."""
    document = client.workflows.get(client.tasks.get(task_id).workflow_id).document
    other = client.submit(document, overrides=CHANGED).task_id
    status_of(client, other, "completed")
    page.goto("/ui/tasks?status=completed")
    for each in (task_id, other):
        page.get_by_role("row").filter(has=page.locator(f"a[href$='{each}']")).get_by_role("checkbox").check()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/ui/compare*")
    expect(page.get_by_role("heading", name="Training loss", exact=True)).to_be_visible()
    specs = [leaves(client.tasks.get(id_).spec) for id_ in re.split("%2C|,", page.url.partition("tasks=")[2])]
    differs = {name for name in specs[0] | specs[1] if specs[0].get(name) != specs[1].get(name)}
    assert set(CHANGED) <= differs
    rows = page.get_by_role("region", name="Configuration").locator("tbody tr")
    shown = {row.locator("th").get_attribute("title"): row.locator("td").all_inner_texts() for row in rows.all()}
    for name in differs:
        assert [float(text) for text in shown[name]] == [spec[name] for spec in specs]
    assert not {name for name in specs[0] if name in shown} - differs
    page.get_by_role("button", name="All fields").click()
    expect(page.locator("tbody tr.differs")).to_have_count(len(differs))
