"""What a server counts is right after a restart and behind others, and says how long rounds and cycles take."""

from __future__ import annotations

from pathlib import Path

from tests.unit.campaign.service.desk import HOUR, go, made, reached
from tests.unit.orchestrator.federating import keep, party
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.service.engine_repository import CampaignRepository
from tunefleet.db.engine.writer import note
from tunefleet.db.repositories import tasks
from tunefleet.db.rows import AttemptRow
from tunefleet.lifecycle.cycle import StepName
from tunefleet.orchestrator.federation import versions
from tunefleet.orchestrator.observability.commit_metrics import Commits


def figure(lab: Lab, name: str, **labels: str) -> float:
    assert lab.core.meters is not None
    return lab.core.meters.registry.get_sample_value(name, labels) or 0.0


def forget(lab: Lab) -> None:
    """Let the server know of waiting tasks what another one knows, or itself after a restart: their rows."""
    commits = lab.core.db._writer._before_commit
    assert isinstance(commits, Commits)
    commits._ready_at.clear()


async def test_the_wait_of_a_task_that_another_server_has_stored_is_counted(lab: Lab) -> None:
    await lab.submit()
    forget(lab)
    lab.clock.advance(7.0)
    worker = await lab.online()
    assert len(await worker.offers()) == 1
    assert figure(lab, "tunefleet_placement_seconds_count", kind="echo") == 1
    assert figure(lab, "tunefleet_placement_seconds_sum", kind="echo") == 7.0


async def test_how_long_a_round_was_open_is_counted(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    lab.clock.advance(90.0)
    await group.upload("w1", 1.0)
    await group.upload("w2", 4.0)
    await keep(lab.core)
    assert figure(lab, "tunefleet_round_seconds_count", outcome="published") == 1
    assert figure(lab, "tunefleet_round_seconds_sum", outcome="published") == 90.0
    await group.upload("w1", 2.0)
    await group.upload("w2", 5.0)
    await keep(lab.core)
    # What is rolled back to was made by no round.
    await versions.rollback(lab.core, lab.admin, group.id, 1)
    assert figure(lab, "tunefleet_round_seconds_count", outcome="published") == 2


async def test_how_long_a_cycle_took_is_counted(lab: Lab) -> None:
    repository = CampaignRepository(lab.core)
    id_ = await made(lab)
    state = await reached(repository, id_, StepName.SLEEP)
    lab.clock.advance(HOUR)
    await go(repository, state, to=None)
    assert figure(lab, "tunefleet_campaign_cycle_seconds_count", outcome="completed") == 1
    assert figure(lab, "tunefleet_campaign_cycle_seconds_sum", outcome="completed") == HOUR


async def test_the_wait_of_a_task_that_an_agent_claims_is_counted(lab: Lab) -> None:
    """A claim is an offer and its accept in one: it is never seen as offered."""
    assert lab.core.meters is not None
    task_id = await lab.submit()
    lab.clock.advance(7.0)
    row = (await lab.core.read(lambda connection: tasks.by_ids(connection, [task_id])))[task_id]
    now = lab.clock.wall
    claimed = AttemptRow(
        "att-1",
        row.id,
        row.seq,
        1,
        "agent",
        row.kind,
        "job",
        row.requirement_key,
        "accepted",
        None,
        None,
        now,
        now,
        None,
    )
    await lab.core.write(lambda connection: note(connection, [claimed]))
    assert figure(lab, "tunefleet_placement_seconds_count", kind="echo") == 1
    assert figure(lab, "tunefleet_placement_seconds_sum", kind="echo") == 7.0
