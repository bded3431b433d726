"""How a page looks to assistive tools, and on a phone."""

from __future__ import annotations

import json

from playwright.sync_api import Page, expect

from tests.integration.api.support import until

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
WIDTH = "Math.max(document.documentElement.scrollWidth, document.getElementById('main').scrollWidth)"
PHONE = {"width": 390, "height": 780}


def violations(page: Page, axe: str) -> dict[str, list[str]]:
    """Return what the script of axe finds wrong with what is shown: rule → the first elements that break it."""
    page.locator("h1").first.wait_for()
    expect(page.locator(".loading")).to_have_count(0)
    page.evaluate(axe)
    found = page.evaluate(f"axe.run(document, {json.dumps(RULES)})")["violations"]
    return {each["id"]: [node["html"][:160] for node in each["nodes"]][:3] for each in found}


def width(page: Page) -> int:
    """Return how wide the page is, with what can be scrolled to."""
    page.locator("h1").first.wait_for()
    return int(page.evaluate(WIDTH))


def check(page: Page, axe: str) -> None:
    """Check what is shown, light and dark, for all who cannot see it as others do, and that it fits a phone."""
    before = page.viewport_size
    assert before is not None
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert violations(page, axe) == {}, scheme
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    main = page.locator("#main")
    # Plots follow the width of their place after a moment.
    until(lambda: main.evaluate("main => main.scrollWidth") <= PHONE["width"])
    page.set_viewport_size(before)
