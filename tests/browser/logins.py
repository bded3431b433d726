"""Windows of people with a role, beside the one that a test's `page` is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.api import KeyCreated, Role


def key_of(client: Client, role: Role, name: str | None = None) -> KeyCreated:
    """Make a key of a role."""
    return client.keys.create(name or f"a-{role}", role)


def enter(page: Page, secret: str, path: str = "/ui/") -> None:
    """Log a window in."""
    page.goto(path)
    page.get_by_label("API key").fill(secret)
    page.get_by_role("button", name="Log in").click()
    page.locator(".shell").wait_for()


@contextmanager
def window(browser: Browser, fleet: LocalFleet, secret: str) -> Iterator[Page]:
    """Open another window, logged in with a key."""
    context = browser.new_context(base_url=fleet.url, viewport={"width": 1280, "height": 800})
    context.set_default_timeout(60_000)
    page = context.new_page()
    enter(page, secret)
    yield page
    context.close()
