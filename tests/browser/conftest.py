"""A real browser on the built page, a real server and worker behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.browser.byhand import WORKER, Hand, hand
from tests.libraries import required
from tunefleet.api import static_ui as served
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

PATIENCE_S = 300.0
PATIENCE_MS = PATIENCE_S * 1000
ENVIRONMENT = {
    "ENABLE_ELASTIC_SCALING": "false",
    "HF_HUB_OFFLINE": "1",
    "LOG_FILE": "",
    "OMP_NUM_THREADS": "1",
    "TUNEFLEET_JOB_SLOTS": "1",
    "TUNEFLEET_URL_ALLOW": "127.0.0.1",
}
SMALL = {
    "data.eval.max_samples": 4, "training.batch_size": 2, "training.max_seq_length": 96, "training.max_steps": 12,
    "evaluate.answers": 0,
}  # fmt: skip
# What a browser says of itself when a server is gone or a key is wrong; the page shows both in words.
EXPECTED = ("Failed to load resource", "net::ERR_")


@pytest.fixture(scope="session")
def built(missing: Callable[[str], None]) -> None:
    """The page; `make test` builds it."""
    if not served.built():
        missing("the web page (make ui)")


@pytest.fixture(scope="session")
def axe(web_packages: Path) -> str:
    """The script that checks what is shown for assistive tools (tests/browser/looks.py)."""
    return (web_packages / "axe-core/axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def fleet(built: None, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    """One for all files, which find there what others have left; those that kill or cordon have `own_fleet`."""
    with ready(tmp_path_factory, free_port()) as made:
        yield made


@pytest.fixture(scope="module")
def lone_server(
    built: None, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[LocalFleet]:
    """A server without workers, for a file that names it `fleet`."""
    with started(tmp_path_factory, free_port(), workers=0) as made:
        yield made


@pytest.fixture(scope="module")
def worker(fleet: LocalFleet) -> Iterator[Hand]:
    """A worker that the test plays itself."""
    with Client(fleet.url, fleet.key) as client:
        key = client.keys.create("writer", "worker").secret
    with hand(fleet.url, key, WORKER) as made:
        yield made


@pytest.fixture(scope="module")
def own_fleet(
    built: None, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[LocalFleet]:
    """One for a file alone, which names it `fleet`."""
    with ready(tmp_path_factory, free_port()) as made:
        yield made


@contextmanager
def ready(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[LocalFleet]:
    """Run a fleet that trains."""
    required("trl")
    with started(tmp_path_factory, port) as made:
        made.await_workers(PATIENCE_S)
        yield made


def started(tmp_path_factory: pytest.TempPathFactory, port: int, *, workers: int = 1) -> LocalFleet:
    """Make a fleet; it runs once it is entered."""
    data = tmp_path_factory.mktemp("fleet")
    return LocalFleet(data, port=port, workers=workers, environment=ENVIRONMENT, save_client=False)


@pytest.fixture(scope="module")
def trained(fleet: LocalFleet, repository: Path) -> str:
    """A task that has trained an adapter."""
    with Client(fleet.url, fleet.key) as client:
        task_id = client.submit(repository / "examples/lora_sft.yaml", overrides=SMALL).task_id
        assert client.tasks.wait(task_id, timeout_s=PATIENCE_S).status == "completed"
    return task_id


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[Client]:
    with Client(fleet.url, fleet.key) as made:
        yield made


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser, fleet: LocalFleet) -> Iterator[Page]:
    """A window of a session of its own; what a page of it logs as an error fails the test."""
    context = browser.new_context(base_url=fleet.url, viewport={"width": 1280, "height": 800})
    context.set_default_timeout(60_000)
    errors: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and not any(part in message.text for part in EXPECTED):
            errors.append(message.text)

    context.on("console", note)
    context.on("weberror", lambda error: errors.append(str(error.error)))
    yield context.new_page()
    context.close()
    assert errors == []


@pytest.fixture
def entered(page: Page, fleet: LocalFleet) -> Page:
    """The page, logged in as the administrator."""
    return enter(page, fleet.key)


@pytest.fixture
def looking(page: Page, fleet: LocalFleet) -> Page:
    """The page, logged in with a key that may only look."""
    with Client(fleet.url, fleet.key) as client:
        return enter(page, client.keys.create("looker", role="viewer").secret)


def enter(page: Page, key: str) -> Page:
    """Log in with a key."""
    page.goto("/ui/")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Overview").wait_for()
    return page
