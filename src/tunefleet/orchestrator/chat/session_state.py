"""In-memory state of chats: sessions, their turns and unread pieces. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tunefleet.schemas.chat import ChatPiece, ChatRequest

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
