"""The store side of an exchange: apply a worker's message, and build the reply. Functions on a connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tunefleet.artifacts import BlobStore
from tunefleet.db import Connection, wake
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import artifacts, attempts, events, journal, queue, tasks
from tunefleet.db.repositories.attempts import OfferRow
from tunefleet.db.repositories.events import Event
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.observability.logs import scrub
from tunefleet.orchestrator.fleet import usage, worker_state
from tunefleet.orchestrator.ids import attempt_of, attempt_token
from tunefleet.orchestrator.observability.task_spans import attempt_traceparent
from tunefleet.orchestrator.storage import checkpoint_retention
from tunefleet.orchestrator.tasks import commands, relations, resume, task_federations
from tunefleet.orchestrator.tasks.retry_decision import finalize, reason_of
from tunefleet.orchestrator.tasks.transitions import Move, switch
from tunefleet.orchestrator.views import to_datetime
from tunefleet.orchestrator.workers import gangs, registration
from tunefleet.schemas.worker_link import (
    Behind,
    CommandOutcome,
    Desired,
    ExchangeReply,
    ExchangeRequest,
    Finish,
    GangNode,
    InputRef,
    MergedTask,
    Offer,
    release_of,
)

# Characters of an error that are kept, from its end, where a traceback has its message; the log has all of it.
_MAX_ERROR: Final = 4_000
_MAX_DETAIL: Final = 64_000


def _tail(text: str, most: int) -> str:
    return text if len(text) <= most else f"[{len(text) - most:,} characters were left out here] {text[-most:]}"


def topic(worker_id: str) -> str:
    """Return the topic that is notified when there is something for a worker."""
    return f"worker:{worker_id}"


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker's message with its tokens resolved to attempt ids.

    Args:
        holding: Token → attempt; None where this server did not sign the token.
        points: Attempt → the rendezvous endpoint where it waits for the other nodes of its gang.
        finishes: Attempt → how it ended; finishes with an unknown token are in `unknown`.
        reached: Attempt → generation of the desired state.
        stalled: Attempt → for how many seconds its job has written nothing.
        delivering: Attempt whose job has ended → why its upload is held up, scrubbed; empty if it is not.
        fetching: Attempt → what it downloads before its job starts, with progress, scrubbed.
    """

    holding: Mapping[str, str | None]
    accepts: Mapping[str, str | None]
    finishes: Mapping[str, Finish]
    unknown: tuple[str, ...]
    reached: Mapping[str, int]
    discarded: tuple[str, ...] = ()
    outcomes: tuple[CommandOutcome, ...] = ()
    stalled: Mapping[str, float] = field(default_factory=dict)
    delivering: Mapping[str, str] = field(default_factory=dict)
    fetching: Mapping[str, str] = field(default_factory=dict)
    draining: bool = False
    leaves: bool = False
    points: Mapping[str, str] = field(default_factory=dict)

    @property
    def anything(self) -> bool:
        """Whether the message changes anything in the store."""
        report = self.accepts or self.finishes or self.unknown or self.reached or self.discarded or self.outcomes
        return bool(report) or self.leaves


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """A reply and its urgency.

    Args:
        keys: One key for each item, so that an item is not sent again immediately.
        urgent: Whether to reply without holding the exchange open.
        known: Slot class → number of attempts that the worker knows it has, without those that only upload.
    """

    reply: ExchangeReply
    keys: set[str]
    urgent: bool
    known: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Acks:
    accepted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    behind: tuple[Behind, ...] = ()


def attempt_ids(secret: bytes, tokens: Iterable[str]) -> dict[str, str]:
    """Return the attempt ids of tokens; tokens that this server did not sign are left out."""
    found = {token: attempt_of(secret, token) for token in tokens}
    return {token: attempt_id for token, attempt_id in found.items() if attempt_id is not None}


def read(secret: bytes, request: ExchangeRequest) -> WorkerReport:
    """Resolve the tokens of an exchange."""
    finishes = {finish.token: attempt_of(secret, finish.token) for finish in request.finishes}
    return WorkerReport(
        holding={token: attempt_of(secret, token) for token in request.holding},
        accepts={token: attempt_of(secret, token) for token in request.accepts},
        finishes={id_: f for f in request.finishes if (id_ := finishes[f.token]) is not None},
        unknown=tuple(token for token, id_ in finishes.items() if id_ is None),
        reached={id_: r.generation for r in request.reached if (id_ := attempt_of(secret, r.token)) is not None},
        discarded=request.discarded,
        outcomes=request.outcomes,
        stalled={id_: s for token, s in request.stalled.items() if (id_ := attempt_of(secret, token)) is not None},
        delivering={
            id_: scrub(why)
            for token, why in request.delivering.items()
            if (id_ := attempt_of(secret, token)) is not None
        },
        fetching={
            id_: scrub(what)
            for token, what in request.fetching.items()
            if (id_ := attempt_of(secret, token)) is not None
        },
        draining=request.draining,
        leaves=request.leaves,
        points={
            id_: point for token, point in request.points.items() if (id_ := attempt_of(secret, token)) is not None
        },
    )


def apply(
    connection: Connection,
    *,
    worker_id: str,
    report: WorkerReport,
    secret: bytes,
    now: float,
    returns: bool,
    blobs: BlobStore,
    patience_s: float,
) -> ExchangeResult:
    """Store a worker's message, and return the reply.

    Accepts and finishes are idempotent by token, and a finish implies the accept. A void attempt stays void: messages
    about it change nothing.
    """
    if returns:
        worker_rows.set_status(connection, worker_id, "online")
        queue.clear_cordons(connection, worker_id)
        events.append(connection, [Event("worker.online", now, worker_id=worker_id)])
    open_attempts = attempts.open_of(connection, worker_id)
    rows = attempts.tasks_of(connection, worker_id)
    behind = _behind(connection, report, open_attempts)
    ended = {id_: finish for id_, finish in report.finishes.items() if id_ in open_attempts and id_ not in behind}
    accepts = {id_ for id_ in report.accepts.values() if id_}
    open_attempts.update(
        (id_, open_attempts[id_]._replace(gang_point=point))
        for id_, point in report.points.items()
        if id_ in open_attempts
    )
    _accept(
        connection,
        [open_attempts[id_] for id_ in open_attempts if id_ in accepts or id_ in ended],
        open_attempts,
        rows,
        now,
    )
    reached = {
        open_attempts[id_].task_id: generation for id_, generation in report.reached.items() if id_ in open_attempts
    }
    tasks.set_reached(connection, reached.items())
    rows.update((id_, rows[id_]._replace(reached=max(rows[id_].reached, reached[id_]))) for id_ in reached)
    worker_rows.finish_discards(connection, worker_id, report.discarded)
    # Before the ends: an end fails open commands, and must not fail the command that caused it.
    commands.take_outcomes(connection, report.outcomes, worker_id, open_attempts, rows, now)
    commands.note_stalls(connection, report.stalled, open_attempts, rows, now)
    ended, waiting = gangs.take(connection, ended, open_attempts, rows, now, patience_s)
    for row in finish(connection, ended, open_attempts, rows, now, blobs):
        # The resume came when the job had already received the pause.
        if row.status == TaskStatus.PAUSED and row.desired == "run" and row.generation > row.reached:
            resume.requeue_resumed(connection, row, now)
    if report.leaves:
        registration.leave(connection, worker_id, now)
    taken = accepts & ({*ended} | {id_ for id_, row in open_attempts.items() if row.state == "accepted"})
    taken -= {id_ for id_ in taken if id_ in open_attempts and open_attempts[id_].gang_of is not None}
    taken |= _finished_before(connection, accepts - taken, worker_id)
    # Members of a gang are acknowledged with their rendezvous endpoint, when all nodes have accepted.
    acks = _Acks(
        accepted=tuple(token for token, id_ in report.accepts.items() if id_ in taken),
        finished=(
            *report.unknown,
            *(f.token for id_, f in report.finishes.items() if id_ not in behind and id_ not in waiting),
        ),
        behind=tuple(behind.values()),
    )
    return build_reply(
        connection, worker_id=worker_id, report=report, secret=secret, acks=acks, open_attempts=open_attempts
    )


def _finished_before(connection: Connection, ids: set[str], worker_id: str) -> set[str]:
    """Return the finished attempts of a worker, whose repeated accepts are acknowledged again."""
    found = attempts.by_ids(connection, sorted(ids)).values()
    return {row.id for row in found if row.worker_id == worker_id and row.state == "finished"}


def _behind(connection: Connection, report: WorkerReport, open_attempts: Mapping[str, AttemptRow]) -> dict[str, Behind]:
    """Return the finishes that arrived before the end of their journal."""
    late: dict[str, Behind] = {}
    for id_, finish in report.finishes.items():
        if not finish.cursors or id_ not in open_attempts:
            continue
        stored = {row.launch: row.cursor for row in journal.launches_of(connection, open_attempts[id_].task_id)}
        # A finish is taken only with the complete journal: metrics and checkpoints before the end must not be lost.
        for launch, end in finish.cursors.items():
            if stored.get(launch, 0) < end:
                late[id_] = Behind(token=finish.token, launch=launch, cursor=stored.get(launch, 0))
                break
    return late


def _accept(
    connection: Connection,
    accepting: Sequence[AttemptRow],
    open_attempts: dict[str, AttemptRow],
    rows: dict[str, TaskRow],
    now: float,
) -> None:
    taken = [row._replace(state="accepted", accepted_at=now) for row in accepting if row.state == "offered"]
    if not taken:
        return
    attempts.store(connection, taken)
    open_attempts.update((row.id, row) for row in taken)
    # A gang starts when its last node has accepted; the task's attempt is always that of the first node.
    begun = [row for row in taken if row.gang_of is None] + gangs.newly_complete(connection, taken)
    changes = {"started_at": now, "queue_deadline": None, "error": None}
    moves = [
        Move(rows[row.task_id], TaskReason.STARTED, changes=changes, data={"attempt": row.number}) for row in begun
    ]
    rows.update((row.id, row) for row in switch(connection, moves, now))
    resume.taken(connection, [row for row in begun if row.slot_class == "job"])
    if queue.any_trouble(connection):
        queue.delete_of_tasks(connection, [row.task_id for row in begun])
        queue.clear_cordons(connection, taken[0].worker_id, kinds=sorted({row.kind for row in taken}))


def finish(
    connection: Connection,
    finishes: Mapping[str, Finish],
    open_attempts: dict[str, AttemptRow],
    rows: dict[str, TaskRow],
    now: float,
    blobs: BlobStore,
) -> list[TaskRow]:
    """End accepted attempts with the reported outcome, and move their tasks."""
    if not finishes:
        return []
    ended, moves, outcomes = [], [], []
    uploaded_results = _uploaded_results(connection, finishes, open_attempts)
    stopped = relations.causes_of_cancelled(connection, [rows[open_attempts[id_].task_id] for id_ in finishes])
    for id_, finish in finishes.items():
        attempt = open_attempts.pop(id_)
        task = rows[attempt.task_id]
        error = None if finish.error is None else scrub(_tail(finish.error, _MAX_ERROR))
        reason = reason_of(finish.outcome, finish.reason)
        move = finalize(task, reason, now, error=error, stopped=stopped.get(task.seq))
        outcome = str(move.data.get("after", move.reason.value))
        ended.append(attempt._replace(state="finished", reason=outcome, error=error, finished_at=now))
        move.data["attempt"] = attempt.number
        moves.append(move)
        detail = None if finish.detail is None else scrub(_tail(finish.detail, _MAX_DETAIL))
        computed = finish.outcome == "completed" or (reason is TaskReason.DELIVERY_FAILED and bool(finish.result))
        succeeded = computed and move.reason is reason
        result = uploaded_results.get(task.seq) or _envelope(task, attempt, finish, now) if succeeded else None
        outcomes.append((task.seq, result, detail))
    attempts.store(connection, ended)
    usage.ended(connection, ended, rows)
    gangs.release(connection, ended, rows, now)
    released = [row.task_seq for row in ended if row.reason == TaskReason.RELEASED]
    if released:
        # A coalesced run has failed: each of its tasks gets a run of its own, to find the one that fails.
        tasks.run_alone(connection, released)
    for row in ended:
        paused = row.reason == TaskReason.PAUSED
        commands.close(connection, [row], f"the task's run ended ({row.reason}).", now, paused=paused)
    tasks.set_outcomes(connection, outcomes)
    moved = switch(connection, moves, now)
    done = [move.task.id for move in moves if move.reason is TaskReason.FINISHED and move.task.slot_class == "job"]
    checkpoint_retention.drop_of_completed(connection, blobs, done, now)
    # The artifacts are referenced now or not needed any more: release the pins that held them.
    artifacts.unpin(connection, [row.id for row in ended if row.slot_class == "job"])
    wake(connection, "placement")
    return moved


def _uploaded_results(
    connection: Connection, finishes: Mapping[str, Finish], open_attempts: Mapping[str, AttemptRow]
) -> dict[int, str]:
    """Return results that were uploaded before an end without one, by the task's `seq`."""
    empty = [
        open_attempts[id_].task_seq for id_, end in finishes.items() if end.outcome == "completed" and not end.result
    ]
    return {seq: row.result for seq, row in tasks.documents(connection, empty).items() if row.result is not None}


def _envelope(task: TaskRow, attempt: AttemptRow, finish: Finish, now: float) -> str:
    metadata = {"attempt": attempt.number, "name": task.name, "kind": task.kind, "workflow_id": task.workflow_id}
    envelope: dict[str, Any] = {
        "task_id": task.id,
        "worker_id": attempt.worker_id,
        "metadata": metadata,
        "received_at": to_datetime(now).isoformat(),
        "result": finish.result,
    }
    try:
        return orjson.dumps(envelope).decode()
    except orjson.JSONEncodeError:
        return orjson.dumps({**envelope, "result": _in_64_bits(finish.result)}).decode()


def _in_64_bits(value: Any) -> Any:
    """Return a result with integers beyond 64 bits as strings, which orjson cannot write as numbers."""
    if isinstance(value, dict):
        return {key: _in_64_bits(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_in_64_bits(each) for each in value]
    return str(value) if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64 else value


def build_reply(
    connection: Connection,
    *,
    worker_id: str,
    report: WorkerReport,
    secret: bytes,
    acks: _Acks | None = None,
    open_attempts: Mapping[str, AttemptRow] | None = None,
) -> ExchangeResult:
    """Return the reply for a worker."""
    acks = acks or _Acks()
    open_attempts = attempts.open_of(connection, worker_id) if open_attempts is None else open_attempts
    offered = any(row.state == "offered" for row in open_attempts.values())
    running = any(row.state == "accepted" for row in open_attempts.values())
    settled = {*acks.finished, *(late.token for late in acks.behind)}
    # Attempts that the worker has and that are not open any more: it must drop their jobs.
    held = {**report.holding, **report.accepts}
    accepted_rows = [open_attempts[id_] for id_ in report.accepts.values() if id_ is not None and id_ in open_attempts]
    accepted = [row for row in accepted_rows if row.gang_of is not None]
    endpoints = gangs.complete(connection, accepted) if accepted else {}
    points = {token: endpoints[id_] for token, id_ in report.accepts.items() if id_ in endpoints}
    drop = tuple(token for token, id_ in held.items() if id_ not in open_attempts and token not in settled)
    reply = ExchangeReply(
        offers=tuple(_offers(connection, attempts.offers(connection, worker_id), secret)) if offered else (),
        accepted=(*acks.accepted, *points),
        points=points,
        finished=acks.finished,
        behind=acks.behind,
        drop=drop,
        desired=tuple(_desired(attempts.desired(connection, worker_id), secret)) if running else (),
        commands=tuple(commands.sendable(connection, worker_id, open_attempts, secret)),
        discard=tuple(worker_rows.discards_of(connection, worker_id)),
        drain=_drain(connection, worker_id, report),
    )
    keys = {
        *(() if reply.drain is None else (f"drain:{reply.drain}",)),
        *(f"offer:{offer.token}" for offer in reply.offers),
        *(f"drop:{token}" for token in drop),
        *(f"desired:{desired_state.token}:{desired_state.generation}" for desired_state in reply.desired),
        *(f"command:{command.command_id}" for command in reply.commands),
        *(f"discard:{task_id}" for task_id in reply.discard),
    }
    ends = [
        open_attempts[id_] for id_ in report.finishes if id_ in open_attempts and open_attempts[id_].gang_of is not None
    ]
    urgent = bool(acks.accepted or acks.finished or acks.behind or points) or gangs.decided(connection, ends)
    busy = set(held.values()) - report.delivering.keys()
    known = Counter(row.slot_class for row in open_attempts.values() if row.id in busy and row.merged_into is None)
    return ExchangeResult(reply, keys, urgent, known)


def _drain(connection: Connection, worker_id: str, report: WorkerReport) -> bool | None:
    wanted = bool(worker_rows.controls_of(connection, worker_id).drains)
    return None if report.leaves or wanted == report.draining else wanted


def _offers(connection: Connection, rows: Sequence[OfferRow], secret: bytes) -> Iterable[Offer]:
    resumes = resume.for_offers(connection, rows)
    federated = task_federations.for_offers(connection, rows, secret)
    gang_ids = sorted({row.gang_of for row in rows if row.gang_of is not None})
    nodes = attempts.of_gangs(connection, gang_ids)
    coalesced: dict[str, list[OfferRow]] = {}
    for row in rows:
        if row.merged_into is not None:
            coalesced.setdefault(row.merged_into, []).append(row)
    for row in rows:
        if row.merged_into is not None:
            continue
        yield Offer.model_construct(
            **_offer_fields(row, secret),
            kind=row.kind,
            slot_class="light" if row.slot_class == "light" else "job",
            resume=resumes.get(row.task_id),
            gpus=tuple(row.gpus.split(",")) if row.gpus else (),
            federation=federated.get(row.task_id),
            traceparent=attempt_traceparent(row.traceparent, row.attempt_id),
            gang=_gang_node(connection, row, nodes),
            project=row.project,
            merged=tuple(
                MergedTask.model_construct(**_offer_fields(member, secret))
                for member in coalesced.get(row.attempt_id, ())
            ),
        )


def _gang_node(connection: Connection, row: OfferRow, nodes: Mapping[str, Sequence[AttemptRow]]) -> GangNode | None:
    if row.gang_of is None:
        return None
    first = nodes[row.gang_of][0]
    leader = worker_rows.get(connection, first.worker_id)
    has = None if leader is None else worker_state.capabilities(leader.capabilities)
    release = "" if has is None else release_of(has.version, has.torch_version)
    return GangNode(id=row.gang_of, rank=row.node_rank or 0, nodes=len(nodes[row.gang_of]), release=release)


def _offer_fields(row: OfferRow, secret: bytes) -> dict[str, Any]:
    """Return the offer fields of an attempt, for its own offer or as a coalesced task of another one."""
    inputs: dict[str, dict[str, str]] = orjson.loads(row.inputs)
    return {
        "token": attempt_token(secret, row.attempt_id),
        "task_id": row.task_id,
        "workflow_id": row.workflow_id,
        "attempt": row.number,
        "name": row.name,
        "spec": orjson.loads(row.spec),
        "inputs": {pointer: InputRef(**ref) for pointer, ref in inputs.items()},
    }


def _desired(rows: Iterable[tuple[str, str, int]], secret: bytes) -> Iterable[Desired]:
    for attempt_id, action, generation in rows:
        yield Desired.model_validate(
            {"token": attempt_token(secret, attempt_id), "action": action, "generation": generation}
        )
