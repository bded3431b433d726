"""The settings in a real browser: keys that log in and are revoked, a notification that arrives, room, versions."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import tunefleet
from tests.browser.conftest import PATIENCE_MS, PATIENCE_S
from tests.browser.logins import window
from tests.browser.test_pages import DIAMOND
from tests.fakes.listening import listening
from tests.integration.api.support import until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.db.engine import migrate

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def test_a_new_key_logs_in_with_its_role_until_it_is_revoked(
    entered: Page, browser: Browser, fleet: LocalFleet, client: Client
) -> None:
    entered.goto("/ui/settings")
    form = entered.get_by_role("form", name="New key")
    form.get_by_label("Name").fill("wall")
    form.get_by_label("Role").select_option("viewer")
    form.get_by_label("Owner").fill("lab")
    form.get_by_role("button", name="Create key").click()
    secret = entered.locator(".secret pre").inner_text()
    made = next(key for key in client.keys.list(limit=1000).items if key.name == "wall")
    assert (made.role, made.owner, made.revoked_at) == ("viewer", "lab", None)
    entered.get_by_role("button", name="Done").click()
    expect(entered.get_by_text(secret)).to_have_count(0)
    own = entered.locator("tr", has=entered.locator(".tag", has_text="yours"))
    expect(own).to_have_count(1)
    expect(own).to_contain_text("admin")

    with window(browser, fleet, secret) as other:
        expect(other.locator(".who")).to_have_text("lab · viewer")
        entered.get_by_role("button", name="Revoke wall").click()
        entered.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(other.get_by_label("API key")).to_be_visible(timeout=PATIENCE_MS)
        assert other.request.get("/api/v1/tasks").status == 401
    assert next(key for key in client.keys.list(limit=1000).items if key.id == made.id).revoked_at is not None
    expect(entered.get_by_role("button", name="Revoke wall")).to_have_count(0)


@pytest.fixture
def receiver() -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    """A web server that takes what comes."""
    got: queue.Queue[dict[str, Any]] = queue.Queue()

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with listening(Taker) as url:
        yield f"{url}/hook", got


def test_a_channel_is_added_tested_and_removed(
    entered: Page, client: Client, receiver: tuple[str, queue.Queue[dict[str, Any]]]
) -> None:
    address, got = receiver
    entered.goto("/ui/settings#notifications")
    entered.get_by_role("button", name="Add channel").click()
    form = entered.get_by_role("form", name="New channel")
    form.get_by_label("Name").fill("desk")
    form.get_by_label("Target").fill(address)
    form.get_by_label("done", exact=True).uncheck()
    form.get_by_role("button", name="Add", exact=True).click()
    row = entered.locator("tr", has_text="desk").filter(has=entered.get_by_role("button", name="Test"))
    expect(row).to_be_visible()
    (channel,) = (each for each in client.notifications.channels().items if each.name == "desk")
    assert channel.signed
    assert "done" not in channel.on
    row.get_by_role("button", name="Test").click()
    told = got.get(timeout=PATIENCE_S)
    assert "test" in f"{told['title']} {told['text']}".lower()
    expect(entered.get_by_text("Test notification sent to desk")).to_be_visible()
    row.get_by_role("button", name="Disable").click()
    expect(row.get_by_role("button", name="Enable")).to_be_visible()
    assert not client.notifications.get_channel(channel.id).enabled
    row.get_by_role("button", name="Remove desk").click()
    entered.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)
    assert [each for each in client.notifications.channels().items if each.name == "desk"] == []


def shown_bytes(page: Page, kind: str) -> float:
    """Return a size of the page's table in bytes."""
    row = page.get_by_role("table", name="Storage by kind").locator("tr", has_text=kind)
    value, unit = row.locator("td").last.inner_text().split()
    return float(value) * UNITS[unit]


def test_the_room_that_is_shown_is_what_lies_in_the_folder(
    entered: Page, fleet: LocalFleet, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "one"}\n' * 40_000)
    client.data.push(tmp_path / "rows.jsonl", name="rows", kind="dataset")
    workflow = client.submit(DIAMOND).workflow.id
    client.workflows.wait(workflow, timeout_s=PATIENCE_S)

    def lying() -> int:
        files = [path for path in (fleet.data / "artifacts").rglob("*") if path.is_file()]
        own = b"The files of the Tunefleet database "  # by which server and files know each other; nobody's data
        return sum(path.stat().st_size for path in files if not path.read_bytes().startswith(own))

    def counted() -> bool:
        kept = sum(use.size_bytes for use in client.storage().uses if use.kind not in {"database", "working"})
        return kept == lying()

    until(counted)
    entered.goto("/ui/settings#storage")
    assert shown_bytes(entered, "Uploaded data") == pytest.approx(640_000, rel=0.05)
    database = (fleet.data / "tunefleet.db").stat().st_size
    assert shown_bytes(entered, "Database") >= 0.9 * database

    entered.get_by_label("Ended more than").select_option("7")
    entered.get_by_role("button", name="Preview").click()
    expect(entered.get_by_role("dialog")).to_contain_text("0 workflows and 0 artifacts")
    entered.get_by_role("button", name="Cancel").click()
    assert client.workflows.get(workflow).status == "completed"


def test_versions_are_those_of_the_server_and_its_worker(entered: Page, client: Client) -> None:
    entered.goto("/ui/settings#versions")
    panel = entered.locator("#versions")
    expect(panel).to_contain_text(tunefleet.__version__)
    expect(panel).to_contain_text(f"schema revision {migrate.HEAD}")
    workers = client.workers.list().items
    expect(panel).to_contain_text(f"{len(workers)} of {len(workers)} run the server version")


def test_on_a_phone_the_menu_leads_to_every_page(entered: Page) -> None:
    pages = entered.get_by_role("navigation", name="Pages", exact=True)
    count = pages.get_by_role("link").count()
    entered.set_viewport_size({"width": 390, "height": 780})
    menu = entered.get_by_role("button", name="Menu")
    expect(pages).to_be_hidden()
    menu.click()
    expect(pages.get_by_role("link")).to_have_count(count)
    expect(entered.get_by_role("button", name="Log out")).to_be_in_viewport()
    pages.get_by_role("link", name="Settings").click()
    expect(entered.get_by_role("heading", name="Settings")).to_be_visible()
    expect(pages).to_be_hidden()
    menu.click()
    entered.keyboard.press("Escape")
    expect(pages).to_be_hidden()
