"""The upload guide's operations on a federation: create a job, poll for a version, aggregate now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, get_args

from pydantic import ValidationError

from tunefleet.db import Connection
from tunefleet.db.federations import rounds as round_rows
from tunefleet.db.federations.federation_versions import VersionRow
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.federations.rounds import RoundRow
from tunefleet.errors import ConflictError, Fault, GoneError, InputError, SpecError
from tunefleet.lifecycle.round import RoundStatus
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import (
    chunk_files,
    data_chunks,
    delegated_access,
    guide_progress,
    rounds,
    service,
    versions,
)
from tunefleet.orchestrator.federation.adapter_files import with_archive
from tunefleet.orchestrator.federation.delegated_access import Signer
from tunefleet.orchestrator.federation.participants import FederationCaller
from tunefleet.orchestrator.federation.status import find, find_to_close, topic
from tunefleet.orchestrator.federation.views import checkpoint_mark
from tunefleet.schemas.api import FileEntry
from tunefleet.schemas.federated import (
    AdapterTaken,
    Aggregated,
    CheckpointReply,
    FederationCreated,
    JobCreate,
    JobCreated,
)
from tunefleet.spec.documents.fault_messages import explain
from tunefleet.spec.options.federation_options import FederationSpec, StrategyName, StrategySpec
from tunefleet.spec.text import Source

# Longest time that a poll is held: proxies close idle connections after a minute. Clients that want to wait longer
# repeat.
HELD_S: Final = 50.0
# How long a manual aggregation is waited for; the guide's clients wait for 300 s.
AGGREGATION_S: Final = 240.0
_LOOK_S: Final = 5.0
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_RENAMED: Final = {
    "aggregation_algorithm": "strategy.name",
    "algorithm": "strategy.name",
    "sync_interval": "sync_every_steps",
    "proximal_mu": "strategy.mu",
}
_LORA: Final = {
    "lora_rank": "r", "lora_r": "r", "rank": "r", "r": "r", "lora_alpha": "alpha", "alpha": "alpha",
    "target_modules": "target_modules", "lora_dropout": "dropout", "use_rslora": "use_rslora",
}  # fmt: skip


def _spec_of_guide(body: JobCreate) -> FederationSpec:
    """Convert a job of the upload guide to a federation spec.

    `fed_config` accepts every federation option besides the guide's four, in snake_case and camelCase. A `model_type`
    that is a Hub id or a path is the base model that every adapter must name; a bare word is a label. LoRA settings, if
    any are given, are required of every adapter.
    """
    data: dict[str, Any] = {"name": body.name, "strategy": {}}
    for key, value in body.fed_config.items():
        _put(data, _plain(key), value)
    name = data["strategy"].get("name")
    if isinstance(name, str):
        data["strategy"]["name"] = _strategy(name)
    if body.model_type is not None and "/" in body.model_type:
        data.setdefault("base_model", body.model_type)
    lora = {_LORA[_plain(key)]: value for key, value in body.config.items() if _plain(key) in _LORA}
    if {"r", "alpha", "target_modules"} & set(lora):
        data.setdefault("lora", lora)
    for key, given in (("dataset", body.dataset), ("chunk_size", body.chunk_size)):
        if given is not None:
            data.setdefault(key, given)
    return _read(data)


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        return
    strategy: dict[str, Any] = data["strategy"]
    path = _RENAMED.get(key, key)
    own = path.removeprefix("strategy.")
    if path == "strategy" and isinstance(value, Mapping):
        strategy.update(value)
    elif path == "strategy":
        strategy["name"] = value
    elif path != own or (own in StrategySpec.model_fields and own not in FederationSpec.model_fields):
        strategy[own] = value
    else:
        data[path] = value


def _plain(key: str) -> str:
    return _HUMP.sub("_", key).lower()


def _strategy(name: str) -> str:
    """Normalize a strategy name such as `FedAvg`; an unknown name is returned unchanged."""
    bare = re.sub(r"[-_ ]", "", name).lower()
    return next((known for known in get_args(StrategyName) if known.replace("_", "") == bare), name)


def _read(data: dict[str, Any]) -> FederationSpec:
    try:
        return FederationSpec.model_validate(data)
    except ValidationError as error:
        faults = [
            Fault(each.path, each.message, hint=each.hint) for each in explain(error, FederationSpec, Source(data))
        ]
        raise SpecError(faults, filename="the job") from None


async def create(core: ServerContext, actor: Actor, body: JobCreate) -> JobCreated:
    """Create a federation from a job of the guide; it starts with its first upload, or when it is started.

    Raises:
        SpecError: If an option is unknown or invalid.
        DataError: If the data cannot be split into chunks.
        ForbiddenError: If the actor may not create federations.
    """
    spec = _spec_of_guide(body)
    total = body.total_chunks if body.chunk_size is None else None
    made = await create_with_data(core, actor, spec, start=False, total_chunks=total)
    reply = await guide_progress.job(core, actor, made.id)
    return JobCreated(job=reply.job, token=made.token, callback_secret=made.callback_secret)


async def create_with_data(
    core: ServerContext, actor: Actor, spec: FederationSpec, *, start: bool, total_chunks: int | None = None
) -> FederationCreated:
    """Create a federation, and split its data into chunks if it has any.

    Raises:
        DataError: If the data cannot be split into chunks.
        ForbiddenError: If the actor may not create federations.
    """
    if spec.dataset is None:
        return await service.create(core, actor, spec, start=start)
    pieces = await chunk_files.cut(core, actor, spec.dataset, spec.chunk_size, total=total_chunks)

    def then(connection: Connection, row: FederationRow) -> None:
        data_chunks.add(connection, row, pieces)

    return await service.create(core, actor, spec, start=start, then=then)


async def poll(
    core: ServerContext, caller: FederationCaller, reference: str, *, after: int | None, wait_s: float, sign: Signer
) -> CheckpointReply | None:
    """Return the newest version for the guide's poll.

    Returns:
        The version; None if the caller gave `after` or waited, and there is no newer one.

    Raises:
        NotFoundError: If there is no such federation, or it has no version yet and the caller does not wait.
    """
    found = await versions.newest(core, caller, reference, after=after or 0, wait_s=min(wait_s, HELD_S))
    row = await core.read(partial(find, caller=caller, reference=reference))
    if found is None and after is None and not wait_s:
        found = await core.read(partial(versions.version_of, row=row))
    return None if found is None else _checkpoint(reference, row.id, *await with_archive(core, found), sign)


def _checkpoint(
    reference: str, federation_id: str, row: VersionRow, archive: FileEntry, sign: Signer
) -> CheckpointReply:
    return CheckpointReply(
        checkpoint=checkpoint_mark(row),
        path=f"{delegated_access.version_path(reference)}?version={row.version}",
        download_url=sign.version(federation_id, reference, row.version, archive.digest),
        version=row.version,
        sha256=archive.digest,
        size_bytes=archive.size_bytes,
        round=row.round,
    )


async def ended_response(
    core: ServerContext, caller: FederationCaller, reference: str, error: GoneError
) -> AdapterTaken:
    """Return the response to an upload to a federation that has ended."""
    row = await core.read(partial(find, caller=caller, reference=reference))
    return AdapterTaken(
        adapter_id=0,
        message=error.message,
        should_aggregate=False,
        round=row.round,
        version=row.version,
        warning=f"{error.message} Stop the worker; the federation's last version is kept.",
    )


async def aggregate(core: ServerContext, caller: FederationCaller, reference: str) -> Aggregated:
    """Aggregate the open round of a federation now, and wait for its version.

    Raises:
        ForbiddenError: If the caller may not close its rounds.
        InputError: If there are too few updates, or the federation is not running.
        ConflictError: If the round fails, or does not finish in time.
    """
    row, closed = await core.write(partial(_close, core=core, caller=caller, reference=reference))
    done = await _settled(core, row, closed)
    if done.status != RoundStatus.PUBLISHED.value or done.version is None:
        why = done.error or f"It is {done.status}; poll for its version."
        raise ConflictError(f"Round {done.number} of {row.id} has no version. {why}")
    return Aggregated(
        checkpoint_path=f"{delegated_access.version_path(reference)}?version={done.version}",
        message=f"Round {done.number} is aggregated and published as version {done.version}.",
        round=done.number,
        version=done.version,
    )


def _close(
    connection: Connection, *, core: ServerContext, caller: FederationCaller, reference: str
) -> tuple[FederationRow, RoundRow]:
    row = find_to_close(connection, caller, reference)
    try:
        return row, rounds.close_now(connection, row, core.clock.wall())
    except ConflictError as error:
        # The guide's clients expect 400 here, not 409.
        raise InputError(error.message, hint=error.hint) from error


async def _settled(core: ServerContext, row: FederationRow, closed: RoundRow) -> RoundRow:
    end = core.clock.monotonic() + AGGREGATION_S
    while True:
        # Read before the round, so that a change between the two ends the wait below.
        seen = core.signals.version(topic(row.id))
        found = await core.read(partial(round_rows.get, seq=row.seq, number=closed.number))
        left = end - core.clock.monotonic()
        # On shutdown too: a held request must not delay it.
        if found is None or RoundStatus(found.status).final or left <= 0 or core.signals.closed:
            return found or closed
        await core.signals.wait(topic(row.id), min(left, _LOOK_S), seen)
