"""A part of a federated training: its own rows, as many steps as the others, and the callback that takes part."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from pydantic import ValidationError
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tunefleet.errors import InputError
from tunefleet.schemas.job_folder import Participant
from tunefleet.spec import FederableTaskSpec, FederatedTrainingSpec, ModelTrainingSpec, ShardSpec
from tunefleet.trainer_control.callbacks.control_callback import ControlCallback
from tunefleet.workloads.data.partition import split
from tunefleet.workloads.data.readers import Rows, take
from tunefleet.workloads.distributed import ranks
from tunefleet.workloads.federated.callback import FederatedCallback
from tunefleet.workloads.training.launch import Launch

SpecT = TypeVar("SpecT", bound=ModelTrainingSpec)
_PAIRS: Final = frozenset({"dpo", "orpo"})
"""Kinds whose rows become two sequences each."""


def own_rows(launch: Launch[SpecT], rows: Rows, origin: str) -> tuple[Launch[SpecT], Rows]:
    """Return the rows that this task trains on, of all that its document names, and the launch with its steps.

    All parts make as many optimizer steps, so that they go from round to round together: as many as an equal share of
    the rows takes. A smaller share is passed over more often.
    """
    part = _part_of(launch.spec)
    if part is None:
        return launch, rows
    federation, shard = part
    training, column = launch.spec.training, federation.split.column
    values = [] if column is None else [_value(row, column, number, origin) for number, row in enumerate(rows, start=1)]
    own = split(len(rows), shard.total, federation.split, values, training.seed)[shard.index].tolist()
    launch.journal.event(
        "federation.rows",
        f"{len(own)} of {len(rows)} rows are those of this part ({shard.index + 1} of {shard.total}).",
        data={"rows": len(own), "all": len(rows), "part": shard.index, "parts": shard.total},
    )
    if training.max_steps is None:
        batch = training.batch_size * training.gradient_accumulation_steps * ranks.count()
        a_pass = math.ceil(len(rows) / shard.total / batch)
        steps = {"max_steps": math.ceil(training.num_train_epochs * a_pass)}
        spec = launch.spec.model_copy(update={"training": training.model_copy(update=steps)})
        launch = replace(launch, spec=spec)
    return launch, take(rows, own)


def callbacks(launch: Launch[SpecT], steering: Iterable[TrainerCallback]) -> list[TrainerCallback]:
    """Return what makes a training take part in its federation, if it is a part of one.

    Raises:
        InputError: If nobody has told it how.
    """
    part = _part_of(launch.spec)
    if part is None:
        return []
    federation, _ = part
    try:
        me = Participant.model_validate_json(launch.folder.federation_json.read_bytes())
    except (OSError, ValidationError) as error:
        raise InputError(
            "The training is a part of a federation, and its worker has not told it how to take part.",
            hint="`tunefleet workers upgrade WORKER VERSION` upgrades it to the version of the server.",
        ) from error
    callback = FederatedCallback(
        me.url,
        me.id,
        me.worker,
        me.token,
        federation.sync_every_steps,
        upload_dtype=federation.upload_dtype,
        base_model=launch.spec.model.source.identifier,
        sequences_per_row=2 if launch.spec.task_type in _PAIRS else 1,
        wait_s=federation.patience_s,
        folder=launch.folder.root / "federated",
        attempt=me.attempt,
    )
    for each in steering:
        if isinstance(each, ControlCallback):
            each.listen(lambda command: callback.hurry() if command.state == "pending" else None)
    return [callback, _StopWhenOver(callback)]


class _StopWhenOver(TrainerCallback):
    """Ends a part whose federation has had all its rounds: what it would learn, nobody would get."""

    def __init__(self, callback: FederatedCallback) -> None:
        self._callback = callback

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Stop, if it is over."""
        if self._callback.over:
            control.should_training_stop = True


def _part_of(spec: ModelTrainingSpec) -> tuple[FederatedTrainingSpec, ShardSpec] | None:
    if not isinstance(spec, FederableTaskSpec) or spec.federation is None:
        return None
    if spec.shard is None:
        raise InputError(
            "A federation is trained over a fleet, and this is the whole of it.",
            hint="`tunefleet submit FILE` sends it to a server, which splits it into parts.",
        )
    return spec.federation, spec.shard


def _value(row: object, column: str, number: int, origin: str) -> object:
    if not isinstance(row, Mapping) or column not in row:
        known = ", ".join(sorted(map(str, row))) if isinstance(row, Mapping) else ""
        raise InputError(
            f"Row {number} of {origin} has no column {column!r}, by which rows are dealt out.",
            hint=f"It has: {known or 'no column'}.",
        )
    return row[column]
