"""What trackers are told of a cycle: the document's keys exactly, ours beside them, and no secret."""

from __future__ import annotations

import math
import re

from tests.unit.campaign.service.desk import ADA, made
from tests.unit.campaign.told import recorded
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.reconciler import run_of
from tunefleet.campaign.service import retries
from tunefleet.campaign.service.tracking_outbox import PendingDelivery, TrackingOutbox
from tunefleet.integrations.trackers.contract import TrackedRun

DOCUMENT_CONFIG = {
    "merged_model_repo", "model_repo", "previously_finetuned_model_repo", "original_model_repo", "timestamp", "task_id",
    "winning_miner", "training_number",
}  # fmt: skip
DOCUMENT_METRICS = {"test_loss", "synth_loss", "weighted_loss", "score"}


async def told(lab: Lab, **said: object) -> tuple[PendingDelivery, TrackedRun]:
    id_ = await made(lab, wandb_project="charts", random_seed=45)
    await recorded(lab, id_, trackers=("wandb",), **said)
    (untold,) = await TrackingOutbox(lab.core).due()
    return untold, run_of(untold)


async def test_the_documents_keys_have_the_documents_values(lab: Lab) -> None:
    untold, run = await told(lab, test_loss=1.0, synth_loss=2.0, score=0.9)
    assert run.name == "adapter-7_task-7"
    assert run.project == "charts"
    assert set(run.config) >= DOCUMENT_CONFIG
    assert {key: run.config[key] for key in DOCUMENT_CONFIG - {"timestamp"}} == {
        "merged_model_repo": "me/merged-7",
        "model_repo": "miner/adapter-7",
        "previously_finetuned_model_repo": "org/promoted",
        "original_model_repo": "org/model",
        "task_id": "task-7",
        "winning_miner": "5Hotkey",
        "training_number": 0,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", str(run.config["timestamp"]))
    assert {key: run.metrics[key] for key in DOCUMENT_METRICS} == {
        "test_loss": 1.0, "synth_loss": 2.0, "weighted_loss": 1.5, "score": 0.9,
    }  # fmt: skip
    assert run.id == f"{untold.state.campaign_id}-0"


async def test_ours_stand_beside_them(lab: Lab) -> None:
    _, run = await told(lab, test_loss=1.0)
    ours = {key: run.metrics[key] for key in set(run.metrics) - DOCUMENT_METRICS}
    assert ours == {
        "held_out_loss": 1.25, "held_out_accuracy": 0.5, "base_loss": 2.0, "gain_over_base": 0.75,
        "gain_over_base_low": 0.7, "gain_over_base_high": 0.8, "own_f1_gain_over_base": -0.01,
        "own_f1_gain_over_base_low": -0.015, "own_f1_gain_over_base_high": -0.005, "promoted": 1, "cost": 2.5,
        "provider_seconds": 10.0,
    }  # fmt: skip
    known = {"campaign": "daily", "cycle": 0, "chunk": 2, "chunks": 5, "chunk_rows": 20, "random_seed": 45}
    assert {key: run.config[key] for key in known} == known
    assert run.summary == {
        "stage": "promoted", "version": 3, "reason": "The candidate's loss is better by 0.75 than the base.",
    }  # fmt: skip


async def test_what_a_provider_does_not_say_is_ours_or_left_out(lab: Lab) -> None:
    _, run = await told(lab, score=math.nan)
    assert run.metrics["test_loss"] == run.metrics["held_out_loss"] == 1.25
    assert run.config["test_loss_of"] == "held-out rows"
    assert not {"synth_loss", "weighted_loss", "score"} & set(run.metrics)


async def test_no_credential_is_told(lab: Lab) -> None:
    id_ = await made(lab, wandb_project="charts")
    signed = "https://user:hunter2@s3.example/m?X-Amz-Signature=abcdef0123456789"
    await recorded(lab, id_, trackers=("wandb",), ref=signed, name=signed)
    (untold,) = await TrackingOutbox(lab.core).due()
    said = repr(run_of(untold))
    assert "hunter2" not in said
    assert "abcdef0123456789" not in said


async def test_a_cycle_whose_model_is_merged_again_is_another_run(lab: Lab) -> None:
    untold, first = await told(lab)
    outbox = TrackingOutbox(lab.core)
    await outbox.delivered(untold, "here")
    assert await outbox.due() == []
    await retries.remerge(lab.core, ADA, untold.state.campaign_id)
    assert await outbox.due() == []
    await recorded(lab, untold.state.campaign_id, trackers=("wandb",))
    (anew,) = await outbox.due()
    second = run_of(anew)
    assert (second.id, second.name) == (f"{first.id}-1", f"{first.name}_remerged")
    await outbox.delivered(untold, "late")
    assert len(await outbox.due()) == 1, "what was told of the earlier one is not told of this one"
