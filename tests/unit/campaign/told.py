"""A cycle as its steps store it, up to `record`."""

from __future__ import annotations

from typing import Any

from tests.unit.campaign.service.desk import go, taken
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.service.engine_repository import CampaignRepository

LINK = "https://user:pass@s3.example/chunk?X-Amz-Signature=abcdef0123456789"
LOSS = {"value": 1.25, "low": 1.2, "high": 1.3, "higher_is_better": False}


DROP = {"value": -0.01, "low": -0.015, "high": -0.005, "passed": True, "why": "within the margin of"}


def outcomes(*, trackers: tuple[str, ...], **said: Any) -> dict[str, dict[str, Any]]:
    """What the steps of a cycle leave; `said` is what the provider says of its model."""
    candidate = {"ref": "miner/adapter-7", "form": "adapter", "name": "5Hotkey", "test_loss": None,
                 "synth_loss": None, "score": None, **said}  # fmt: skip
    measured = {"task_id": "t", "metrics": {"loss": LOSS, "accuracy": {"value": 0.5}}, "loss": 1.25}
    base = {"task_id": "b", "metrics": {"loss": {**LOSS, "value": 2.0}}, "loss": 2.0}
    gain = {"value": 0.75, "low": 0.7, "high": 0.8, "passed": True, "why": "better than"}
    return {
        "data": {"chunk": {"rows": 20, "digest": "d" * 64, "url": LINK}, "epoch": 0, "index": 2, "chunks": 5},
        "submit": {"ticket": "task-7", "provider": "gradients", "key": "k", "base": {"repo": "org/promoted"}},
        "wait": {"candidates": [candidate], "detail": "success", "cost_s": 10.0},
        "evaluate": {"metric": "loss", "base": base, "promoted": None, "candidates": [measured]},
        "select": {"candidate": candidate, "evaluation": measured, "loss": 1.25},
        "merge": {"task_id": "m", "artifact_id": "a", "digest": "e" * 64, "form": "model"},
        "gate": {"passed": True, "reason": "The candidate's loss is better by 0.75 than the base.",
                 "against": {"base": gain},
                 "metrics": [{"metric": "loss", "passed": True, "reason": "", "against": {"base": gain}},
                             {"metric": "own_f1", "passed": True, "reason": "", "against": {"base": DROP}}]},
        "publish": {"url": "hf://me/merged-7", "where": "https://hub/me/merged-7"},
        "record": {"version": 3, "stage": "promoted", "trackers": list(trackers)},
        "sleep": {"next_at": 4e9, "slept_s": 1.0},
    }  # fmt: skip


async def recorded(lab: Lab, id_: str, *, trackers: tuple[str, ...], **said: Any) -> None:
    """Let a campaign go through its next cycle, to its end."""
    repository = CampaignRepository(lab.core)
    state = await taken(repository, id_)
    await repository.spend(state, "task", 2.5, f"{id_}/{state.number}")
    assert await go(repository, state, to=None, **outcomes(trackers=trackers, **said)) is None
