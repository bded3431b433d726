"""The model library in a real browser: what there is, where it comes from, and what can be done with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser import looks
from tests.browser.conftest import PATIENCE_MS, PATIENCE_S
from tunefleet.client import Client
from tunefleet.runtime import envs

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(900)]


def test_a_model_leads_to_its_run_its_merge_and_back(entered: Page, client: Client, trained: str, axe: str) -> None:
    name = client.tasks.get(trained).name
    entered.goto(f"/ui/tasks/{trained}")
    entered.get_by_role("link", name="Lineage").click()
    entered.wait_for_url("**/ui/models?id=*")
    lineage = entered.get_by_label("Lineage")
    expect(lineage).to_contain_text("gsm8k-llama-2m")
    expect(lineage.get_by_role("link", name=name)).to_have_attribute("href", f"/ui/tasks/{trained}")
    looks.check(entered, axe)

    entered.get_by_role("button", name="Merge", exact=True).click()
    entered.wait_for_url("**/ui/tasks/task-*")
    merge = entered.url.rpartition("/")[2].partition("?")[0]
    assert client.tasks.wait(merge, timeout_s=PATIENCE_S).status == "completed"
    entered.goto("/ui/models?form=merged")
    entered.get_by_role("link", name=f"{name}-merged").first.click()
    expect(lineage.get_by_role("link", name=name, exact=True)).to_be_visible(timeout=PATIENCE_MS)
    lineage.get_by_role("link", name=name, exact=True).click()
    expect(lineage.get_by_role("link", name=f"{name}-merged").first).to_be_visible()

    entered.goto("/ui/models?form=merged")
    entered.get_by_role("link", name=f"{name}-merged").first.click()
    entered.get_by_role("link", name="Fine-tune", exact=True).last.click()
    entered.wait_for_url("**/ui/train")
    chosen = entered.get_by_role("button", name=f"{name}-merged")
    expect(chosen.first).to_have_attribute("aria-pressed", "true", timeout=PATIENCE_MS)


def test_a_gguf_file_shows_how_it_answers(
    entered: Page, client: Client, trained: str, axe: str, missing: Callable[[str], None]
) -> None:
    if why := envs.reason("gguf"):
        missing(why)
    entered.goto(f"/ui/tasks/{trained}")
    entered.get_by_role("link", name="Lineage").click()
    entered.get_by_role("button", name="GGUF").click()
    dialog = entered.get_by_role("dialog")
    dialog.get_by_label("q4_k_m").check()
    dialog.get_by_role("button", name="Export").click()
    entered.wait_for_url("**/ui/tasks/task-*")
    made = entered.url.rpartition("/")[2].partition("?")[0]
    assert client.tasks.wait(made, timeout_s=PATIENCE_S).status == "completed"
    panel = entered.locator("section.panel", has=entered.get_by_role("heading", name="Result"))
    expect(panel).to_contain_text("Merged model verified: relative error", timeout=PATIENCE_MS)
    expect(panel).to_contain_text("The GGUF file gives the model's answer to")
    expect(panel).to_contain_text("24 tensors have more bits than q4_k_m.")
    panel.get_by_text("Modelfile for Ollama").click()
    expect(panel).to_contain_text("FROM ./model-q4_k_m.gguf")
    looks.check(entered, axe)


def test_an_uploaded_model_is_listed_and_deleted(entered: Page, client: Client, tmp_path: Path, axe: str) -> None:
    folder = tmp_path / "library-model"
    shutil.copytree(str(resources.files("tunefleet").joinpath("workloads/assets/models/gsm8k-llama-2m")), folder)
    (folder / "README.md").write_text("Another digest than that of other tests.", encoding="utf-8")
    entered.goto("/ui/models")
    entered.get_by_label("Model folder").set_input_files(folder)
    entered.wait_for_url("**/ui/models?id=*")
    detail = entered.locator("section.panel", has=entered.get_by_role("heading", name="library-model Base"))
    expect(detail.get_by_role("button", name="Chat")).to_be_enabled()
    export = detail.get_by_role("button", name="GGUF")
    if envs.reason("gguf"):
        # No converter on this worker: the button says what is missing.
        expect(export).to_be_disabled()
    else:
        expect(export).to_be_enabled()
    looks.check(entered, axe)
    entered.get_by_label("Search").fill("library-model")
    expect(entered.locator("table.models tbody tr")).to_have_count(1)
    detail.get_by_role("button", name="Delete").click()
    entered.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(entered.get_by_text("library-model deleted")).to_be_visible()
    assert [each.name for each in client.artifacts.list(kind="model").items if each.name == "library-model"] == []
