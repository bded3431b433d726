"""What is known of chats, in memory: sessions, their turns, and what nobody has read yet. Touches nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tunefleet.schemas.chat import ChatPiece, ChatRequest

_FORGET_S: Final = 3600.0


@dataclass(slots=True)
class Turn:
    """A message that is to be answered."""

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
        """Take the next piece; after the last one nothing is taken."""
        if self.whole:
            return
        self.told_at = now
        # What only says why nothing comes is no beginning.
        self.begun = self.begun or piece.waiting is None
        self.whole = piece.finish is not None or piece.error is not None
        self.unread += len(piece.text)
        self._pieces.append(piece)

    def take(self) -> list[ChatPiece]:
        """Return what has come since the last call."""
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
class Talks:
    """The chats of a server."""

    _sessions: dict[str, Session] = field(default_factory=dict)

    def known(self, task_id: str) -> Session | None:
        """Return a session, if anything is known of it."""
        return self._sessions.get(task_id)

    def session(self, task_id: str, now: float) -> Session:
        """Return a session; it is made if need be, and those that nobody has heard of for long are forgotten."""
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
