"""One shard of a federated training task: its rows, its number of steps, and its callback."""

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
# Task types whose rows become two sequences each.
_PAIRS: Final = frozenset({"dpo", "orpo"})


def shard_rows(launch: Launch[SpecT], rows: Rows, origin: str) -> tuple[Launch[SpecT], Rows]:
    """Return the rows of this shard, of all rows in the dataset, and the launch with its number of steps.

    All shards make the same number of optimizer steps, so that their rounds stay in step: as many as an equal share of
    the rows takes. A smaller shard makes more passes over its rows.
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
        f"This participant ({shard.index + 1} of {shard.total}) trains on {len(own)} of {len(rows)} rows.",
        data={"rows": len(own), "all": len(rows), "part": shard.index, "parts": shard.total},
    )
    if training.max_steps is None:
        batch = training.batch_size * training.gradient_accumulation_steps * ranks.count()
        steps_per_epoch = math.ceil(len(rows) / shard.total / batch)
        steps = {"max_steps": math.ceil(training.num_train_epochs * steps_per_epoch)}
        spec = launch.spec.model_copy(update={"training": training.model_copy(update=steps)})
        launch = replace(launch, spec=spec)
    return launch, take(rows, own)


def callbacks(launch: Launch[SpecT], control: Iterable[TrainerCallback]) -> list[TrainerCallback]:
    """Return the callbacks that connect the run to its federation, if it belongs to one.

    Raises:
        InputError: If the worker has not written the connection file.
    """
    part = _part_of(launch.spec)
    if part is None:
        return []
    federation, _ = part
    try:
        participant = Participant.model_validate_json(launch.folder.federation_json.read_bytes())
    except (OSError, ValidationError) as error:
        raise InputError(
            "The task belongs to a federation, and its worker did not provide the connection settings.",
            hint="Upgrade the worker to the version of the server: `tunefleet workers upgrade WORKER VERSION`.",
        ) from error
    callback = FederatedCallback(
        participant.url,
        participant.id,
        participant.worker,
        participant.token,
        federation.sync_every_steps,
        upload_dtype=federation.upload_dtype,
        base_model=launch.spec.model.source.identifier,
        sequences_per_row=2 if launch.spec.task_type in _PAIRS else 1,
        wait_s=federation.patience_s,
        folder=launch.folder.root / "federated",
        attempt=participant.attempt,
    )
    # A pending command (stop, pause) must not wait until the next global version arrives.
    for each in control:
        if isinstance(each, ControlCallback):
            each.listen(lambda command: callback.hurry() if command.state == "pending" else None)
    return [callback, _StopWhenOver(callback)]


class _StopWhenOver(TrainerCallback):
    """Ends the run once its federation has completed all rounds: further updates would not be used."""

    def __init__(self, callback: FederatedCallback) -> None:
        self._callback = callback

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Stop if the federation is over."""
        if self._callback.over:
            control.should_training_stop = True


def _part_of(spec: ModelTrainingSpec) -> tuple[FederatedTrainingSpec, ShardSpec] | None:
    if not isinstance(spec, FederableTaskSpec) or spec.federation is None:
        return None
    if spec.shard is None:
        raise InputError(
            "A task with `federation` runs on several workers of a server, not as a single local job.",
            hint="Submit it with `tunefleet submit FILE`: the server splits it into shards.",
        )
    return spec.federation, spec.shard


def _value(row: object, column: str, number: int, origin: str) -> object:
    if not isinstance(row, Mapping) or column not in row:
        known = ", ".join(sorted(map(str, row))) if isinstance(row, Mapping) else ""
        raise InputError(
            f"Row {number} of {origin} has no column {column!r}, by which the rows are split.",
            hint=f"Its columns: {known or 'none'}.",
        )
    return row[column]
