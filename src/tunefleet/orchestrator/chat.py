"""Chats: turns wait here until their session's worker polls for them, and pieces of answers until they are read.

In memory only, and bounded: a server restart ends open turns, but not sessions. Workers poll, so that they may be
behind a NAT. All of it runs on the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.rows import TaskRow
from tunefleet.errors import ConflictError, InputError, UnreachableError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access.permissions import Actor, AttemptActor, may_change, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.tasks.tasks import find
from tunefleet.schemas.chat import ChatHeard, ChatPiece, ChatPoll, ChatRequest, ChatTurn, ChatTurns, ChatView

KIND: Final = "chat"
# Maximum number of open turns of a session.
MAX_TURNS: Final = 32
# Unread characters after which an answer is given up, to bound memory.
MAX_UNREAD: Final = 1 << 20
HOLD_S: Final = 25.0
# Poll duration while turns are open: the worker's polls show that it is alive.
_OPEN_S: Final = 5.0
# Silence of a worker after which waiting users are notified.
_SILENT_S: Final = 15.0
# How long a turn is kept whose answer is not being read: its client has disconnected.
_UNREAD_S: Final = 10.0
# How long a session counts as ready after its worker's last poll.
_AWAY_S: Final = 60.0
# Timeout for the first piece of an answer: the session may still be loading its model.
_FIRST_S: Final = 900.0
# Timeout for each further piece.
_NEXT_S: Final = 180.0
_LOOK_S: Final = 2.0
_FORGET_S: Final = 3600.0


@dataclass(slots=True)
class Turn:
    """A message, and the answer to it as it arrives."""

    id: str
    task_id: str
    request: ChatRequest
    asked_at: float
    told_at: float
    read: bool = False
    taken: bool = False
    begun: bool = False
    gone: bool = False
    whole: bool = False
    unread: int = 0
    _pieces: list[ChatPiece] = field(default_factory=list)

    def put(self, piece: ChatPiece, now: float) -> None:
        """Append the next piece; pieces after the last one are ignored."""
        if self.whole:
            return
        self.told_at = now
        # A piece that only gives a reason for waiting is not a start.
        self.begun = self.begun or piece.waiting is None
        self.whole = piece.finish is not None or piece.error is not None
        self.unread += len(piece.text)
        self._pieces.append(piece)

    def take(self) -> list[ChatPiece]:
        """Return the pieces since the last call."""
        found, self._pieces, self.unread = self._pieces, [], 0
        return found


@dataclass(slots=True)
class Session:
    """A chat on a worker."""

    heard_at: float
    ready: bool = False
    models: tuple[str, ...] = ()
    turns: dict[str, Turn] = field(default_factory=dict)
    attempt_id: str | None = None
    ending: bool = False


@dataclass(slots=True)
class ChatSessions:
    """The chats of a server."""

    _sessions: dict[str, Session] = field(default_factory=dict)

    def known(self, task_id: str) -> Session | None:
        """Return a session; None if there is none."""
        return self._sessions.get(task_id)

    def session(self, task_id: str, now: float) -> Session:
        """Return a session, created if necessary; sessions without contact for an hour are dropped."""
        found = self._sessions.get(task_id)
        if found is None:
            old = [
                name
                for name, each in self._sessions.items()
                if now - each.heard_at > _FORGET_S and not any(not turn.gone for turn in each.turns.values())
            ]
            for name in old:
                del self._sessions[name]
            found = self._sessions[task_id] = Session(heard_at=now)
        return found


async def view(core: ServerContext, actor: Actor, task_id: str) -> ChatView:
    """Return the status of a chat."""
    may_read(actor)
    row = await core.read(lambda connection: _chat(connection, actor, task_id))
    return _view(core, row)


async def begin(core: ServerContext, actor: Actor, task_id: str, request: ChatRequest) -> Turn:
    """Start a turn; `pieces` yields its answer.

    Raises:
        InputError: If the session has no model of that name.
        ForbiddenError: If the chat belongs to another user.
    """
    row = await core.read(lambda connection: _chat(connection, actor, task_id))
    may_change(actor, row.owner, row.id)
    _refuse_ended(row)
    now = core.clock.monotonic()
    session = core.state(ChatSessions).session(row.id, now)
    _drop_unread(session, now)
    if session.models and request.model is not None and request.model not in session.models:
        raise InputError(f"The chat has no model {request.model!r}.", hint=f"It has: {', '.join(session.models)}.")
    if len(session.turns) >= MAX_TURNS:
        raise ConflictError(
            f"{row.id} is already answering {len(session.turns)} messages.", hint="Wait until they are answered."
        )
    turn = Turn(new_id("turn"), row.id, request, asked_at=now, told_at=now)
    session.turns[turn.id] = turn
    core.signals.notify(_inbox(row.id))
    return turn


async def pieces(core: ServerContext, actor: Actor, turn: Turn) -> AsyncGenerator[ChatPiece, None]:
    """Yield the pieces of an answer as they arrive; the last one has `finish`.

    A piece with `waiting` gives the reason for a delay, if known; an empty `waiting` ends it.

    Raises:
        TunefleetError: If there is no answer; the message gives the reason.
    """
    if turn.gone:
        raise UnreachableError("The answer was not read in time.", hint="Send the message again.")
    turn.read, last_reason = True, ""
    try:
        while True:
            seen = core.signals.version(_topic(turn.id))
            for piece in turn.take():
                if piece.error is not None:
                    raise ConflictError(piece.error, hint=piece.hint)
                last_reason = ""
                yield piece
                if piece.finish is not None:
                    return
            if core.signals.closed:
                raise UnreachableError(
                    "The server is shutting down.", hint="Send the message again after its restart; the chat continues."
                )
            row = await _check(core, actor, turn)
            if (waiting := _waiting(core, row, turn)) != last_reason:
                last_reason = waiting
                yield ChatPiece(waiting=waiting)
            await core.signals.wait(_topic(turn.id), _LOOK_S, seen)
    finally:
        turn.gone = True
        session = core.state(ChatSessions).known(turn.task_id)
        if session is not None and (turn.whole or not turn.taken):
            session.turns.pop(turn.id, None)
        core.signals.notify(_inbox(turn.task_id))


async def end(core: ServerContext, actor: Actor, task_id: str) -> ChatView:
    """End a chat as completed once its open turns are done.

    Raises:
        ForbiddenError: If it belongs to another user.
    """
    row = await core.read(lambda connection: _chat(connection, actor, task_id))
    may_change(actor, row.owner, row.id)
    if TaskStatus(row.status).final:
        return _view(core, row)
    if row.status != TaskStatus.RUNNING:
        raise ConflictError(f"Chat {row.id} is {row.status}.", hint=f"Cancel it with `tunefleet cancel {row.id}`.")
    core.state(ChatSessions).session(row.id, core.clock.monotonic()).ending = True
    core.signals.notify(_inbox(row.id))
    return _view(core, row)


async def poll(core: ServerContext, attempt: AttemptActor, request: ChatPoll) -> ChatTurns:
    """Return new turns to a session's worker; a long poll of up to `wait_s` seconds."""
    now = core.clock.monotonic()
    session = core.state(ChatSessions).session(attempt.task_id, now)
    session.heard_at, session.ready, session.models = now, request.ready, request.models
    if session.attempt_id != attempt.attempt_id:
        # A poll of the previous attempt that is still held must not receive turns of this one.
        session.attempt_id = attempt.attempt_id
        core.signals.notify(_inbox(attempt.task_id))
    _drop_lost(core, session, frozenset(request.held))
    _drop_unread(session, now)
    deadline = now + min(request.wait_s, _OPEN_S if session.turns else HOLD_S)
    while True:
        if session.attempt_id != attempt.attempt_id:
            return ChatTurns()
        seen = core.signals.version(_inbox(attempt.task_id))
        found = _work(session)
        left_s = deadline - core.clock.monotonic()
        if found.turns or found.gone or found.end or left_s <= 0 or core.signals.closed:
            return found
        await core.signals.wait(_inbox(attempt.task_id), left_s, seen)


async def receive_piece(core: ServerContext, attempt: AttemptActor, turn_id: str, piece: ChatPiece) -> ChatHeard:
    """Store a piece of an answer from the session's worker."""
    session = core.state(ChatSessions).session(attempt.task_id, core.clock.monotonic())
    session.heard_at = core.clock.monotonic()
    turn = session.turns.get(turn_id)
    if turn is None or turn.gone:
        session.turns.pop(turn_id, None)
        return ChatHeard(gone=True)
    turn.put(piece, core.clock.monotonic())
    if turn.unread > MAX_UNREAD:
        turn.put(
            ChatPiece(error="The answer is not being read.", hint="Send the message again."), core.clock.monotonic()
        )
    if turn.whole:
        session.turns.pop(turn_id, None)
    core.signals.notify(_topic(turn_id))
    return ChatHeard(gone=False)


def _work(session: Session) -> ChatTurns:
    gone = [turn.id for turn in session.turns.values() if turn.gone]
    for turn_id in gone:
        del session.turns[turn_id]
    fresh = [turn for turn in session.turns.values() if not turn.taken] if session.ready else []
    for turn in fresh:
        turn.taken = True
    turns = tuple(ChatTurn(id=turn.id, request=turn.request) for turn in fresh)
    return ChatTurns(turns=turns, gone=tuple(gone), end=session.ending and not session.turns)


def _drop_lost(core: ServerContext, session: Session, held: frozenset[str]) -> None:
    """End the turns that a worker has received but no longer knows, after a restart of its job."""
    for turn in [each for each in session.turns.values() if each.taken and each.id not in held]:
        if not turn.begun:
            # Nothing of the answer was sent yet: hand out the turn again.
            turn.taken = False
            continue
        lost = "The chat was restarted during the answer."
        turn.put(ChatPiece(error=lost, hint="Send the message again."), core.clock.monotonic())
        session.turns.pop(turn.id, None)
        core.signals.notify(_topic(turn.id))


def _drop_unread(session: Session, now: float) -> None:
    for turn in [each for each in session.turns.values() if not each.read and now - each.asked_at > _UNREAD_S]:
        # A turn that the worker has is removed with the next poll, which reports it as gone.
        turn.gone = True
        if not turn.taken:
            session.turns.pop(turn.id, None)


def _waiting(core: ServerContext, row: TaskRow, turn: Turn) -> str:
    """Return the reason for a delay; empty if unknown."""
    if row.status != TaskStatus.RUNNING:
        return f"Chat {row.id} is {row.status}."
    session = core.state(ChatSessions).known(row.id)
    if session is None:
        return ""
    if core.clock.monotonic() - max(session.heard_at, turn.told_at) > _SILENT_S:
        return "The worker does not respond."
    return "" if session.ready or session.attempt_id is None else "The worker is loading the model."


async def _check(core: ServerContext, actor: Actor, turn: Turn) -> TaskRow:
    waited_s = core.clock.monotonic() - turn.told_at
    if waited_s > (_NEXT_S if turn.begun else _FIRST_S):
        raise UnreachableError(f"No answer within {waited_s:.0f} s.", hint="See the log of the run.")
    row = await core.read(lambda connection: _chat(connection, actor, turn.task_id))
    _refuse_ended(row)
    return row


def _refuse_ended(row: TaskRow) -> None:
    if TaskStatus(row.status).final:
        why = f": {row.error}" if row.error else ""
        raise ConflictError(f"Chat {row.id} has ended ({row.status}{why}).", hint="Start another one.")


def _chat(connection: Connection, actor: Actor, task_id: str) -> TaskRow:
    row = find(connection, actor, task_id)
    if row.kind != KIND:
        raise ConflictError(
            f"Run {row.id} is of kind {row.kind}, not a chat.", hint=f"Start one with `tunefleet chat {row.id}`."
        )
    return row


def _view(core: ServerContext, row: TaskRow) -> ChatView:
    session = core.state(ChatSessions).known(row.id)
    error = row.error if row.status == TaskStatus.FAILED else None
    if session is None or row.status != TaskStatus.RUNNING:
        return ChatView(task_id=row.id, status=row.status, error=error)
    online = core.clock.monotonic() - session.heard_at < _AWAY_S
    return ChatView(
        task_id=row.id,
        status=row.status,
        ready=session.ready and online,
        models=session.models,
        waiting=len(session.turns),
        error=error,
    )


def _inbox(task_id: str) -> str:
    return f"chat:{task_id}"


def _topic(turn_id: str) -> str:
    return f"chat:{turn_id}"
