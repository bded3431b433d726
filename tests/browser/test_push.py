"""A trained adapter is pushed to a Hub from its run, in a real browser: a worker with a token, a double of the Hub."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser import looks
from tests.browser.conftest import ENVIRONMENT, PATIENCE_MS, PATIENCE_S
from tests.fakes.hub import Hub, serving
from tests.libraries import required
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(900)]

TOKEN = "hf_writerwriterwriter"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with serving(TOKEN) as made:
        yield made


@pytest.fixture(scope="module")
def fleet(
    hub: Hub, built: None, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[LocalFleet]:
    required("trl")
    # The Hub's fast way to send files speaks to a service of its own, which the double lacks.
    reach = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
    data = tmp_path_factory.mktemp("fleet")
    with LocalFleet(data, port=free_port(), workers=1, environment=ENVIRONMENT | reach, save_client=False) as made:
        made.await_workers(PATIENCE_S)
        yield made


def test_an_adapter_is_pushed_from_its_run(
    entered: Page, client: Client, fleet: LocalFleet, trained: str, hub: Hub, axe: str
) -> None:
    entered.goto(f"/ui/tasks/{trained}")
    entered.get_by_role("button", name="Push to hub").click()
    dialog = entered.get_by_role("dialog", name="Push to hub")
    repository, send = dialog.get_by_label("Repository"), dialog.get_by_role("button", name="Push", exact=True)
    expect(repository).to_be_focused()
    expect(dialog.get_by_label("Private")).to_be_checked()
    expect(send).to_be_disabled()
    repository.fill("no repository")
    expect(send).to_be_disabled()
    repository.fill("acme/tuned")
    dialog.get_by_label("Branch").fill("v1")
    dialog.get_by_label("Commit message").fill("First round")
    expect(send).to_be_enabled()
    looks.check(entered, axe)
    repository.press("Enter")
    expect(entered.get_by_text("Push started")).to_be_visible()
    entered.wait_for_url(lambda url: "/ui/tasks/task-" in url and trained not in url)
    push = re.search(r"task-\w+", entered.url)
    assert push is not None
    ended = client.tasks.wait(push[0], timeout_s=PATIENCE_S)
    assert ended.status == "completed", ended.error
    url = f"{hub.url}/acme/tuned/tree/v1"
    link = entered.get_by_role("link", name=url)
    expect(link).to_have_attribute("href", url, timeout=PATIENCE_MS)
    looks.check(entered, axe)
    repo = hub.repos["acme/tuned"]
    assert (repo.private, repo.messages) == (True, ["First round"])
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md"} <= repo.branches["v1"].keys()
    # The card that the training run wrote; what a push would write needs the run's result.
    assert "builtin:gsm8k-llama-2m" in repo.branches["v1"]["README.md"].decode()
    (written,) = fleet.data.rglob(f"{push[0]}/job.json")
    job = json.loads(written.read_text())
    assert json.loads(Path(job["inputs"]["checkpoint.result"]).read_text())
    assert TOKEN not in written.read_text()
    assert TOKEN not in client.tasks.get(push[0]).model_dump_json()


def test_a_worker_without_a_token_is_the_reason(entered: Page, trained: str) -> None:
    def without(body: str) -> str:
        assert '"hub":null' in body
        return body.replace('"hub":null', '"hub":"HF_TOKEN is not set."')

    entered.route("**/api/v1/workers*", lambda route: route.fulfill(body=without(route.fetch().text())))
    entered.goto(f"/ui/tasks/{trained}")
    button = entered.get_by_role("button", name="Push to hub")
    expect(button).to_be_disabled()
    expect(button).to_have_attribute("title", "HF_TOKEN is not set.")
