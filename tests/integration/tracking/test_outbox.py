"""A tracker that is away: the campaign goes on, the failure is seen, and what was not told is told later, once."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from tests.fakes.listening import listening
from tests.integration.tracking.kept import mlflow_runs, trackio_runs
from tests.unit.campaign.service.desk import ADA, made
from tests.unit.campaign.told import recorded
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.reconciler import Reporter, run_of
from tunefleet.campaign.service import history, service
from tunefleet.campaign.service.tracking_outbox import MAX_PAUSE_S, TrackingOutbox, pause_s
from tunefleet.cli.campaigns import views
from tunefleet.cli.console import _THEME
from tunefleet.integrations.trackers import delivery
from tunefleet.schemas.campaign import CampaignDetail, TrackingView
from tunefleet.settings import TrackingSettings, load

pytestmark = [pytest.mark.proof]


def reporter(lab: Lab, folder: Path) -> Reporter:
    return Reporter(TrackingOutbox(lab.core), load(TrackingSettings), folder)


async def tell_all(reporter: Reporter) -> int:
    found = await reporter.due()
    for untold in found:
        assert await reporter.tell(untold)
    return len(found)


async def shown(lab: Lab, id_: str) -> tuple[CampaignDetail, list[TrackingView]]:
    found = await service.get(lab.core, ADA, id_)
    return found, [told for cycle in reversed(found.cycle_list) for told in cycle.tracking]


def on_screen(found: CampaignDetail) -> str:
    """What `campaign show` prints."""
    screen = Console(file=io.StringIO(), width=4000, theme=_THEME)
    for part in views.detail(found):
        screen.print(part)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


async def lines(lab: Lab, id_: str) -> list[str]:
    found = await history.read_log(lab.core, ADA, id_)
    return [f"{line.level}: {line.text}" for line in found.lines]


async def test_what_could_not_be_told_is_told_later(lab: Lab, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where MLflow's database should lie, somebody has put a file.
    blocked = alone / "runs"
    blocked.touch()
    uri = f"sqlite:///{blocked}/runs.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    id_ = await made(lab, tracking=["mlflow"], wandb_project="charts")
    telling = reporter(lab, alone)
    await recorded(lab, id_, trackers=("mlflow",), test_loss=1.0)
    assert await tell_all(telling) == 1
    found, (first,) = await shown(lab, id_)
    assert (found.status, found.failures, found.cycle_list[0].status) == ("active", 0, "completed")
    assert first.told_at is None
    assert first.tries == 1
    assert first.error is not None
    assert first.error.startswith("mlflow did not accept the run")
    assert first.retry_at is not None
    assert first.retry_at.timestamp() == pytest.approx(lab.clock.wall + pause_s(1))
    assert any("warning: cannot record the cycle in mlflow" in line for line in await lines(lab, id_))
    assert "mlflow: not sent after 1 attempt: mlflow did not accept the run" in on_screen(found)
    assert await tell_all(telling) == 0, "not before its time"

    blocked.unlink()
    blocked.mkdir()
    lab.clock.advance(pause_s(1) + 1)
    assert await tell_all(telling) == 1
    found, (later,) = await shown(lab, id_)
    assert later.told_at is not None
    assert later.place is not None
    assert f"mlflow: {later.place}" in on_screen(found)
    assert later.error is None
    assert [run["metrics"]["test_loss"] for run in mlflow_runs(uri)] == [[[1.0, 0]]]
    assert (await lines(lab, id_))[-1].startswith("info: recorded in mlflow")
    assert await tell_all(telling) == 0


async def test_a_kill_between_telling_and_storing_that_leaves_one_run(lab: Lab, alone: Path) -> None:
    id_ = await made(lab, tracking=["trackio"])
    await recorded(lab, id_, trackers=("trackio",))
    telling = reporter(lab, alone)
    (untold,) = await telling.due()
    # The tracker has it, and the server was killed before it stored that.
    await delivery.post("trackio", run_of(untold), alone, load(TrackingSettings))
    assert await tell_all(reporter(lab, alone)) == 1
    (run,) = trackio_runs(alone / "trackio", "daily")
    assert run["config"]["campaign"] == "daily"
    assert len(run["rows"]) == 1


async def test_a_tracker_that_hangs_holds_up_nothing_and_ends_with_the_server(
    lab: Lab, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        id_ = await made(lab, tracking=["mlflow"])
        await recorded(lab, id_, trackers=("mlflow",))
        telling = reporter(lab, alone)
        (untold,) = await telling.due()
        under_way = asyncio.create_task(telling.tell(untold))
        caller, _ = await asyncio.get_running_loop().sock_accept(silent)
        (child,) = [
            each for each in psutil.Process().children() if "tunefleet.integrations.trackers.child" in each.cmdline()
        ]
        # It is asked, and says nothing; the campaign goes through its next cycle.
        lab.clock.advance(4e9)
        await recorded(lab, id_, trackers=("mlflow",))
        assert not under_way.done()
        under_way.cancel()
        with pytest.raises(asyncio.CancelledError):
            await under_way
        caller.close()
    assert not child.is_running()
    found, _ = await shown(lab, id_)
    assert [each.status for each in found.cycle_list] == ["completed", "completed"]
    assert len(await telling.due()) == 2


async def test_a_campaign_that_wants_no_tracker_any_more_is_told_of_nowhere(lab: Lab, alone: Path) -> None:
    id_ = await made(lab, tracking=["trackio"])
    await recorded(lab, id_, trackers=("trackio",))
    await made(lab, tracking=["none"])
    assert await tell_all(reporter(lab, alone)) == 1
    assert await shown(lab, id_) == (await service.get(lab.core, ADA, id_), [])
    assert not (alone / "trackio").exists()
    assert not await TrackingOutbox(lab.core).waits()


async def test_a_tracker_that_lacks_its_key_says_so_and_stops_nothing(lab: Lab, alone: Path) -> None:
    id_ = await made(lab, tracking=["wandb"])
    await recorded(lab, id_, trackers=("wandb",))
    await tell_all(reporter(lab, alone))
    found, (untold,) = await shown(lab, id_)
    assert found.status == "active"
    assert untold.error is not None
    assert "Set it, or WANDB_MODE=offline" in untold.error


@contextmanager
def refusing() -> Iterator[str]:
    """A service that says 401, and repeats the key that it was given."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            said = f"no such key: {self.headers.get('Authorization', '')}".encode()
            self.send_response(401)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST

        def log_message(self, *given: object) -> None:
            return

    with listening(Handler) as url:
        yield url


async def test_a_key_that_a_tracker_repeats_is_in_no_row_and_no_line(
    lab: Lab, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "mlflow-token-1234567890"
    with refusing() as url:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", token)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        id_ = await made(lab, tracking=["mlflow"])
        await recorded(lab, id_, trackers=("mlflow",))
        await tell_all(reporter(lab, alone))
    found, (untold,) = await shown(lab, id_)
    assert untold.error is not None
    assert "no such key: Bearer ***" in untold.error
    said = found.model_dump_json() + "".join(await lines(lab, id_))
    assert token not in said
    assert token.encode() not in b"".join(
        path.read_bytes() for path in lab.core.settings.data_dir.glob("tunefleet.db*")
    )


def test_the_pauses_grow_to_an_hour() -> None:
    assert [pause_s(tries) for tries in (1, 2, 3, 7, 100)] == [60, 120, 240, MAX_PAUSE_S, MAX_PAUSE_S]
