"""The tracker run of a cycle: a pure function of its steps' outcomes.

The keys of the Gradients scheduler are kept exactly, so that existing charts continue; ours are added.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tunefleet.campaign.service.tracking_outbox import PendingDelivery
from tunefleet.integrations.trackers.contract import Plain, TrackedRun
from tunefleet.lifecycle.cycle import StepName
from tunefleet.observability.scrub import scrub


def run_of(untold: PendingDelivery) -> TrackedRun:
    """Return the tracker run of a cycle."""
    state, done = untold.state, untold.state.outcomes
    candidate, ticket = done[StepName.SELECT]["candidate"], str(done[StepName.SUBMIT]["ticket"])
    suffix = f"-{untold.revision}" if untold.revision else ""
    name = f"{str(candidate['ref']).rsplit('/', 1)[-1]}_{ticket}"
    if untold.revision:
        name += "_remerged" if untold.revision == 1 else f"_remerged{untold.revision}"
    return TrackedRun(
        id=f"{state.campaign_id}-{state.number}{suffix}",
        name=scrub(name),
        project=state.spec.wandb_project or state.name,
        group=state.name,
        at=untold.recorded_at,
        step=state.number,
        config=_plain(_config(untold, candidate, ticket)),
        metrics={key: value for key, value in _metrics(untold, candidate) if _is_number(value)},
        summary=_plain(_summary(done)),
    )


def _config(untold: PendingDelivery, candidate: Mapping[str, Any], ticket: str) -> Mapping[str, Any]:
    state, done = untold.state, untold.state.outcomes
    data, order, version = done[StepName.DATA], done[StepName.SUBMIT], done[StepName.RECORD]["version"]
    at = datetime.fromtimestamp(untold.recorded_at, UTC)
    return {
        # The document's.
        "merged_model_repo": _merged(done) or f"{state.name}-v{version}",
        "model_repo": candidate["ref"],
        "previously_finetuned_model_repo": order["base"]["repo"],
        "original_model_repo": state.spec.model_repo,
        "timestamp": f"{at:%Y-%m-%d_%H-%M-%S}",
        "task_id": ticket,
        "winning_miner": candidate["name"],
        "training_number": state.position,
        # Ours.
        "campaign": state.name,
        "campaign_id": state.campaign_id,
        "cycle": state.number,
        "provider": order.get("provider"),
        "chunk": data.get("index"),
        "chunks": data.get("chunks"),
        "epoch": data.get("epoch"),
        "chunk_rows": data["chunk"].get("rows"),
        "chunk_digest": data["chunk"].get("digest"),
        "samples_per_training": state.spec.samples_per_training,
        "hours_to_complete": state.spec.hours_to_complete,
        "random_seed": state.spec.random_seed,
        "gate_metric": state.spec.gate.metric,
        "test_loss_of": "held-out rows" if candidate.get("test_loss") is None else "provider",
    }


def _merged(done: Mapping[StepName, Mapping[str, Any]]) -> str | None:
    """Return the Hub repository of the merged or published model; another kind of location by its URL."""
    url = done[StepName.PUBLISH].get("url") or done[StepName.MERGE].get("url")
    return None if url is None else str(url).removeprefix("hf://")


def _metrics(untold: PendingDelivery, candidate: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    done = untold.state.outcomes
    held_out, synth = done[StepName.SELECT]["loss"], candidate.get("synth_loss")
    reported = candidate.get("test_loss")
    test = held_out if reported is None else reported
    # The document's.
    yield "test_loss", test
    yield "synth_loss", synth
    if _is_number(test) and _is_number(synth):
        yield "weighted_loss", (test + synth) / 2
    yield "score", candidate.get("score")
    # Ours.
    yield "held_out_loss", held_out
    yield from _measured(done[StepName.EVALUATE], done[StepName.SELECT].get("evaluation") or {})
    for other, gain in (done[StepName.GATE].get("against") or {}).items():
        yield f"gain_over_{other}", gain["value"]
        yield f"gain_over_{other}_low", gain["low"]
        yield f"gain_over_{other}_high", gain["high"]
    yield "promoted", int(bool(done[StepName.GATE]["passed"]))
    yield "cost", untold.cost
    yield "provider_seconds", done[StepName.WAIT].get("cost_s")


def _measured(evaluation: Mapping[str, Any], candidate: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the other metrics of the candidate, and those of the base and of the promoted model."""
    of = {"held_out": candidate, "base": evaluation.get("base"), "promoted_model": evaluation.get("promoted")}
    for model, measured in of.items():
        for metric, found in ((measured or {}).get("metrics") or {}).items():
            if (model, metric) != ("held_out", "loss"):
                yield f"{model}_{metric}", found.get("value")


def _summary(done: Mapping[StepName, Mapping[str, Any]]) -> Mapping[str, Any]:
    recorded = done[StepName.RECORD]
    return {"stage": recorded["stage"], "version": recorded["version"], "reason": done[StepName.GATE]["reason"]}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _plain(values: Mapping[str, Any]) -> dict[str, Plain]:
    """Drop None values and redact credentials: a repository may have been given as a signed link."""
    known = {key: value for key, value in values.items() if value is not None}
    return {key: scrub(value) if isinstance(value, str) else value for key, value in known.items()}
