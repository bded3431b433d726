"""What `tunefleet campaign run` shows: bars on a terminal, plain lines in a pipe, nothing of it with `--json`."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from tunefleet.cli.campaigns import live_view
from tunefleet.cli.campaigns.live_view import (
    CampaignOutput,
    JsonOutput,
    LiveOutput,
    LogOutput,
    campaign_output,
    log_output,
)
from tunefleet.schemas.campaign import ActivityView, CampaignLine, CampaignView, CycleView

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LINE = CampaignLine(id=1, at=NOW, campaign="daily", cycle=0, step="merge", level="info", text="merge: [bold]task-1")  # type: ignore[arg-type]


def campaign(status: str = "active", **said: Any) -> CampaignView:
    activity = ActivityView(**said, at=NOW) if said else None
    cycle = CycleView(
        number=0, position=0, status="running", step="merge", tries=0, retry_at=None, waiting=None, activity=activity,
        error=None, retried=0, cost=0.0, version=None, opened_at=NOW, finished_at=None, steps=(),
    )  # type: ignore[arg-type]  # fmt: skip
    return CampaignView(
        id="camp-1", name="daily", owner="ada", status=status, reason="ada paused it." if status == "paused" else None,
        provider="local", base_model="m", cycles=1, cycle=cycle, next_at=None, failures=0, spent=0.0, promoted=None,
        created_at=NOW, changed_at=NOW,
    )  # type: ignore[arg-type]  # fmt: skip


def merging(done: int) -> CampaignView:
    return campaign(what="merging", done=done, total=80, unit="MiB", of="task-1")


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Console:
    made = Console(file=io.StringIO(), force_terminal=True, width=110, color_system=None)
    monkeypatch.setattr(live_view, "err", lambda: made)
    return made


def drawn(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_a_terminal_has_a_bar_below_the_lines(screen: Console) -> None:
    with campaign_output(as_json=False) as shown:
        assert isinstance(shown, LiveOutput)
        shown.show(merging(40))
        shown.line(LINE)
        shown._bars.refresh()
    text = drawn(screen)
    assert "daily  cycle 0, merge: merging" in text
    assert "40 of 80 MiB" in text
    bar = next(line for line in text.splitlines() if "40 of 80 MiB" in line)
    assert bar.count("━") > 10
    assert "- daily - INFO [cycle 0, merge] merge: [bold]task-1" in text


def test_other_work_begins_a_bar_anew_and_a_campaign_that_rests_has_a_full_one(screen: Console) -> None:
    with LiveOutput(screen) as shown:
        shown.show(merging(40))
        shown.show(campaign(what="verifying", of="task-1"))
        (bar,) = shown._bars.tasks
        assert (bar.completed, bar.total, bar.fields["amount"]) == (0, None, "")
        shown.show(campaign("paused", what="verifying"))
        assert (bar.completed, bar.total, bar.description) == (1, 1, "daily  ada paused it.")
    assert "verifying" in drawn(screen)


def test_a_pipe_gets_a_line_when_other_work_begins_and_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(live_view.time, "monotonic", lambda: clock[0])
    with campaign_output(as_json=False) as shown:
        assert type(shown) is CampaignOutput
        shown.show(campaign())
        for done in range(0, 81, 10):
            shown.show(merging(done))
            clock[0] += 5
        shown.line(LINE)
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert [line.partition("merging ")[2] for line in lines[:-1]] == ["0 of 80 MiB", "60 of 80 MiB"]
    assert lines[0].endswith(" - daily - INFO [cycle 0, merge] merging 0 of 80 MiB")
    assert "\x1b" not in said.err


def test_json_has_the_lines_of_the_log_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    with campaign_output(as_json=True) as shown:
        assert isinstance(shown, JsonOutput)
        shown.show(merging(40))
        shown.line(LINE)
    said = capsys.readouterr()
    assert json.loads(said.out)["text"] == "merge: [bold]task-1"
    assert said.err == ""


def test_a_log_that_is_followed_has_a_bar_on_a_terminal_and_its_lines_alone_elsewhere(
    screen: Console, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_view, "out", lambda: screen)
    with log_output(as_json=False) as shown:
        assert isinstance(shown, LiveOutput)
        shown.show(merging(40))
        shown.line(LINE)
        shown._bars.refresh()
    assert "40 of 80 MiB" in drawn(screen)
    monkeypatch.setattr(live_view, "out", lambda: Console(file=io.StringIO()))
    with log_output(as_json=False) as piped:
        assert isinstance(piped, LogOutput)
        piped.show(merging(40))
        piped.line(LINE)
    printed = capsys.readouterr()
    assert printed.out.endswith(" - daily - INFO [cycle 0, merge] merge: [bold]task-1\n")
    assert printed.out.count("\n") == 1
    assert printed.err == ""
    assert isinstance(log_output(as_json=True), JsonOutput)
