"""The pages of federations in a real browser: rounds as they happen, refusals with reasons, the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import looks
from tests.browser.conftest import PATIENCE_MS, started
from tests.unit.federation.adapters import SHAPES, factors, save
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.client.federation.client import FederatedClient
from tunefleet.errors import AdapterRefused
from tunefleet.schemas.federated import FederationCreated, Losses
from tunefleet.spec.options.federation_options import FederationSpec

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]


class Labs:
    """Workers that upload small adapters of their own."""

    def __init__(self, fleet: LocalFleet, made: FederationCreated, folder: Path) -> None:
        self._url, self._made, self._folder = fleet.url, made, folder
        self._dice = np.random.default_rng(5)
        self._step = 0

    def round(self, loss: float) -> None:
        """Upload one update of each of two labs."""
        self._step += 8
        for number, name in enumerate(("oslo", "lima")):
            self.upload(name, num_examples=100 + 200 * number, losses=Losses(before=loss + 1, after=loss + number))

    def upload(self, name: str, *, wide: int = 0, num_examples: int = 1, losses: Losses | None = None) -> None:
        shapes = {module: (rows, columns + wide) for module, (rows, columns) in SHAPES.items()}
        save(self._folder / name, factors(self._dice, shapes=shapes))
        with FederatedClient(self._url, self._made.id, name, self._made.token) as worker:
            worker.upload(self._folder / name, step=self._step, num_examples=num_examples, losses=losses)


@pytest.fixture(scope="module")
def fleet(built: None, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    """A server alone: who takes part in a federation is no worker of its fleet."""
    with started(tmp_path_factory, free_port(), workers=0) as made:
        yield made


@pytest.fixture
def made(client: Client) -> Iterator[FederationCreated]:
    wanted = {"name": "clinics", "strategy": {"name": "fedavg_exact", "rank": 1}, "min_workers": 2}
    made = client.federations.create(FederationSpec.model_validate(wanted))
    yield made
    if client.federations.get(made.id).status != "cancelled":
        client.federations.cancel(made.id)
    client.federations.remove(made.id)


def legend(page: Page, title: str) -> Locator:
    return page.locator("figure.chart", has=page.get_by_role("heading", name=title)).locator(".legend b")


def panel(page: Page, title: str) -> Locator:
    return page.locator(".panel", has=page.get_by_role("heading", name=title))


def test_rounds_are_watched_and_an_earlier_version_is_brought_back(
    entered: Page, fleet: LocalFleet, client: Client, request: pytest.FixtureRequest, tmp_path: Path, axe: str
) -> None:
    entered.get_by_role("link", name="Federations").click()
    expect(entered.get_by_text("No federations yet")).to_be_visible()
    made: FederationCreated = request.getfixturevalue("made")
    labs = Labs(fleet, made, tmp_path)
    entered.get_by_role("link", name="clinics").click()
    expect(entered.get_by_text("No versions yet")).to_be_visible()
    entered.evaluate("window.stayed = true")

    # Each round appears by itself, and what is shown of its version is what the server has.
    bands = entered.get_by_role("group", name="Round timeline").locator(".band")
    for number, loss in ((1, 4.0), (2, 3.0)):
        labs.round(loss)
        expect(bands).to_have_count(number + 1, timeout=PATIENCE_MS)
        expect(panel(entered, f"Version {number}")).to_be_visible()
    version = client.federations.version(made.id, 2)
    assert version.truncation_error is not None
    assert version.truncation_error > 0.01
    assert float(legend(entered, "Loss per version").inner_text()) == pytest.approx(version.loss, rel=1e-3)
    assert float(legend(entered, "Truncation error").inner_text()) == pytest.approx(version.truncation_error, rel=1e-3)
    for each in version.contributions:
        row = panel(entered, "Version 2").locator("tbody tr", has_text=each.worker)
        expect(row).to_contain_text(f"{each.weight:.3f}")
        expect(row).to_contain_text(str(each.num_examples))
    dots = entered.get_by_role("group", name="Round timeline").locator(".dot.good")
    expect(dots).to_have_count(4)

    # A worker that sends what does not fit is told, and so is who looks.
    with pytest.raises(AdapterRefused):
        labs.upload("mallory", wide=1)
    (refused,) = client.federations.updates(made.id, state="rejected").items
    assert refused.reason
    expect(entered.get_by_role("region", name="Rejected updates")).to_contain_text(refused.reason)

    looks.check(entered, axe)

    # The way back: an address of its own, a question, and a version that workers fetch.
    entered.get_by_role("link", name="version 1", exact=True).click()
    assert entered.url.endswith(f"/ui/federations/{made.id}?version=1")
    entered.get_by_role("button", name="Roll back").click()
    entered.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    entered.wait_for_url("**version=3")
    newest = client.federations.newest(made.id)
    assert newest is not None
    assert (newest.version, newest.equals, newest.round) == (3, 1, None)
    expect(entered.get_by_role("region", name="Versions")).to_contain_text("same as version 1")

    status = entered.locator("h1 + .status")
    for button, after in (("Pause", "paused"), ("Resume", "running")):
        entered.get_by_role("button", name=button, exact=True).click()
        expect(status).to_have_text(after)
        assert client.federations.get(made.id).status == after
    entered.get_by_role("button", name="End federation").click()
    entered.get_by_role("dialog").get_by_role("button", name="End federation").click()
    expect(status).to_have_text("cancelled")
    assert client.federations.get(made.id).status == "cancelled"
    assert entered.evaluate("window.stayed") is True


def test_what_waits_is_aggregated_when_somebody_asks(
    entered: Page, fleet: LocalFleet, client: Client, tmp_path: Path
) -> None:
    wanted = {"name": "slow", "min_workers": 3, "participants": ["oslo", "lima", "kyoto"]}
    made = client.federations.create(FederationSpec.model_validate(wanted))
    entered.goto(f"/ui/federations/{made.number}")
    Labs(fleet, made, tmp_path).round(2.0)
    expect(entered.get_by_text("Waiting for kyoto")).to_be_visible()
    entered.get_by_role("button", name="Aggregate now").click()
    expect(panel(entered, "Version 1")).to_be_visible(timeout=PATIENCE_MS)
    assert client.federations.get(made.id).version == 1


def test_a_viewer_sees_a_federation_and_steers_nothing(looking: Page, made: FederationCreated) -> None:
    looking.goto(f"/ui/federations/{made.id}")
    expect(looking.get_by_role("heading", name="clinics")).to_be_visible()
    expect(looking.get_by_role("toolbar", name="Controls")).to_have_count(0)
    looking.goto("/ui/federations/fed-000000000000")
    expect(looking.get_by_text("Not found", exact=True)).to_be_visible()
