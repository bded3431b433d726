"""Federations of training tasks: started with the shards of a task, ended with the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.federations import federations
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import dependencies, tasks
from tunefleet.db.repositories.attempts import OfferRow
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.lifecycle.round import RoundReason
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.federation import delegated_access, rounds, service
from tunefleet.orchestrator.federation.rounds import worker_of
from tunefleet.orchestrator.federation.service import forget
from tunefleet.orchestrator.federation.status import move, spec_of
from tunefleet.orchestrator.federation.updates import acceptance
from tunefleet.schemas.worker_link import FederatedPart
from tunefleet.spec.options.federation_options import FederationSpec
from tunefleet.spec.tasks.federated_training import FederatedTrainingSpec

_FEDERATION_KEY: Final = '"federation"'


def make(connection: Connection, task: TaskRow, spec: Mapping[str, Any], now: float) -> FederationRow:
    """Create and start the federation of a task whose shards were just stored."""
    wanted = FederatedTrainingSpec.model_validate(dict(spec))
    made = FederationSpec(
        name=task.name,
        strategy=wanted.strategy,
        min_workers=wanted.min_workers,
        participants=tuple(worker_of(number) for number in range(wanted.workers)),
        deadline_s=wanted.deadline_s,
        rounds=wanted.rounds,
        sync_every_steps=wanted.sync_every_steps,
    )
    row = service.make(connection, made, now, project=task.project, owner=task.owner, task=task)
    return acceptance.begin(connection, row, now)


def part_ended(connection: Connection, row: FederationRow, parts: Sequence[TaskRow], now: float) -> TaskRow | None:
    """Continue without failed shards; return the one that ends the task if too few are left."""
    if not FederationStatus(row.status).final:
        lost = [part for part in parts if part.status in {TaskStatus.FAILED, TaskStatus.CANCELLED}]
        # No later round could reach `min_workers`.
        if len(parts) - len(lost) < spec_of(row).min_workers:
            return next((part for part in lost if part.status == TaskStatus.FAILED), lost[0])
        rounds.tick(connection, row.seq, now)
    return None


def end_with(connection: Connection, ended: Sequence[TaskRow], now: float) -> None:
    """Cancel the unfinished federations of tasks that have ended."""
    for row in federations.of_tasks(connection, [task.seq for task in ended], lock=True).values():
        if not FederationStatus(row.status).final:
            cancelled = move(connection, row, FederationStatus.CANCELLED, now)
            rounds.abandon(connection, cancelled, RoundReason.FEDERATION_ENDED, "Its task has ended.", now)


def versions_in_use(connection: Connection, rows: Sequence[TaskRow]) -> dict[int, str]:
    """Return the tasks with a federation version that an unfinished task reads, with that task's id."""
    made = federations.of_tasks(connection, [row.seq for row in rows])
    found = federations.readers(connection, [each.seq for each in made.values()])
    return {seq: found[each.seq] for seq, each in made.items() if each.seq in found}


def remove_with(connection: Connection, removed: Sequence[TaskRow], now: float) -> None:
    """Delete the federations of removed tasks; a running one is cancelled first."""
    end_with(connection, removed, now)
    for row in federations.of_tasks(connection, [task.seq for task in removed], lock=True).values():
        forget(connection, row)


def for_offers(connection: Connection, offers: Sequence[OfferRow], secret: bytes) -> dict[str, FederatedPart]:
    """Return the participant settings for the federated shards among some offers, by task id."""
    attempts = {
        offer.task_id: offer.number
        for offer in offers
        # The substring test avoids parsing the specs of all other tasks.
        if _FEDERATION_KEY in offer.spec and orjson.loads(offer.spec).get("federation")
    }
    if not attempts:
        return {}
    rows = tasks.by_ids(connection, list(attempts)).values()
    places = dependencies.shards_of(connection, [row.seq for row in rows])
    made = federations.of_tasks(connection, [place.parent_seq for place in places.values()])
    found = {}
    for row in rows:
        place = places.get(row.seq)
        federation = made.get(place.parent_seq) if place is not None else None
        if place is not None and federation is not None:
            token = delegated_access.current_token(connection, secret, federation.id)
            found[row.id] = FederatedPart(
                id=federation.id, worker=worker_of(place.number), token=token, attempt=attempts[row.id]
            )
    return found
