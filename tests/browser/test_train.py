"""From a model to a chat with it without YAML: the wizard, the result of the run, and what follows from it."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser import looks
from tests.browser.conftest import PATIENCE_MS, PATIENCE_S
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(900)]

ROWS = [{"question": f"What are {n} and {n}?", "answer": f"{n} and {n} are {2 * n}."} for n in range(1, 61)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder on the user's computer, with a file that is no part of it."""
    folder = tmp_path / "tiny-model"
    shutil.copytree(str(resources.files("tunefleet").joinpath("workloads/assets/models/gsm8k-llama-2m")), folder)
    (folder / ".DS_Store").write_bytes(b"x")
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def step(page: Page, name: str) -> None:
    page.get_by_role("button", name=f"Next: {name}").click()


def test_a_model_and_rows_of_ones_own_become_a_result(
    entered: Page, client: Client, model: Path, rows: Path, axe: str, tmp_path: Path
) -> None:
    entered.goto("/ui/train")
    entered.get_by_label("Model folder").set_input_files(model)
    expect(entered.get_by_text("tiny-model uploaded")).to_be_visible(timeout=PATIENCE_MS)
    expect(entered.get_by_role("button", name="tiny-model Uploaded")).to_have_attribute("aria-pressed", "true")
    (uploaded,) = [each for each in client.artifacts.list(kind="model").items if each.name == "tiny-model"]
    assert {file.path for file in client.artifacts.get(uploaded.id).files} == {
        path.name for path in model.iterdir() if not path.name.startswith(".")
    }
    looks.check(entered, axe)

    step(entered, "Data")
    entered.get_by_label("Data file").set_input_files(rows)
    expect(entered.get_by_text("sums.jsonl uploaded")).to_be_visible(timeout=PATIENCE_MS)
    expect(entered.locator(".chip")).to_have_text(["question", "answer"])
    expect(entered.locator(".mask.counts").nth(1)).to_have_text("1 and 1 are 2.")
    looks.check(entered, axe)

    step(entered, "Method")
    entered.get_by_label("Balanced").check()
    entered.get_by_text("Advanced settings").click()
    rate = entered.get_by_label("learning rate", exact=True)
    rate.fill("-1")
    rate.press("Enter")
    expect(entered.locator("#training-learning_rate-about")).to_contain_text("must be greater than 0")
    looks.check(entered, axe)
    rate.fill("4e-3")
    rate.press("Enter")

    # The memory of the uploaded model is known from its configuration.
    expect(entered.locator(".memory li")).to_have_count(4, timeout=PATIENCE_MS)
    entered.get_by_role("button", name="YAML", exact=True).click()
    expect(entered.locator(".cm-content")).to_contain_text("artifact: sums.jsonl")
    entered.get_by_role("button", name="YAML", exact=True).click()

    step(entered, "Review")
    name = entered.get_by_label("Name of the run")
    name.fill("doubled")
    name.press("Tab")
    expect(entered.get_by_text("eligible", exact=True)).to_be_visible(timeout=PATIENCE_MS)
    entered.get_by_role("button", name="Start", exact=True).click()
    entered.wait_for_url("**/ui/tasks/task-*")
    task = client.tasks.wait(entered.url.rpartition("/")[2], timeout_s=PATIENCE_S)
    assert task.status == "completed", task.error
    assert task.name == "doubled"
    assert task.inputs["model.source.identifier"] == uploaded.digest

    result = entered.locator("section.panel", has=entered.get_by_role("heading", name="Result", exact=True))
    expect(result).to_contain_text("Eval loss", timeout=PATIENCE_MS)
    expect(result.locator(".answers dl")).to_have_count(3)
    looks.check(entered, axe)
    with entered.expect_download() as image:
        result.get_by_role("button", name="Image").click()
    assert Path(image.value.path()).read_bytes().startswith(b"\x89PNG")
    with entered.expect_download() as archive:
        result.get_by_role("link", name="Download adapter").click()
    assert archive.value.suggested_filename.startswith("final_lora.tar")

    result.get_by_role("button", name="Merge").click()
    entered.wait_for_url(lambda url: task.id not in url and "/ui/tasks/task-" in url)
    merged = client.tasks.wait(entered.url.rpartition("/")[2].partition("?")[0], timeout_s=PATIENCE_S)
    assert merged.status == "completed", merged.error
    assert [each.kind for each in client.artifacts.list(task_id=merged.id).items] == ["model"]


def test_a_run_is_trained_again_with_its_model_and_settings(entered: Page, client: Client, trained: str) -> None:
    entered.goto(f"/ui/train?from={trained}")
    expect(entered.get_by_label("Name of the run")).to_be_visible(timeout=PATIENCE_MS)
    entered.get_by_role("button", name="Start", exact=True).click()
    entered.wait_for_url("**/ui/tasks/task-*")
    again = client.tasks.get(entered.url.rpartition("/")[2])
    client.tasks.cancel(again.id)
    before = client.tasks.get(trained)
    assert again.id != before.id
    assert again.spec["training"] == before.spec["training"]


def test_keys_and_the_palette_lead_to_pages_and_runs(entered: Page, client: Client, trained: str) -> None:
    entered.goto("/ui/")
    entered.locator("h1").first.wait_for()
    entered.keyboard.press("g")
    entered.keyboard.press("w")
    entered.wait_for_url("**/ui/workers")
    expect(entered).to_have_title("Workers · Tunefleet")
    entered.keyboard.press("Control+k")
    palette = entered.get_by_label("Page or run")
    palette.fill(client.tasks.get(trained).name)
    expect(entered.get_by_role("option", name=trained)).to_be_visible(timeout=PATIENCE_MS)
    entered.get_by_role("option", name=trained).click()
    entered.wait_for_url(f"**/ui/tasks/{trained}")
    expect(entered).to_have_title(f"completed · {client.tasks.get(trained).name} · Tunefleet")
    entered.keyboard.press("g")
    entered.keyboard.press("r")
    entered.wait_for_url("**/ui/tasks")
    entered.get_by_label("Search").wait_for()
    entered.keyboard.press("/")
    expect(entered.get_by_label("Search")).to_be_focused()
