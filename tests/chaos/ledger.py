"""What clients were told: every write that a server has acknowledged, and every one of which nobody knows."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from tunefleet.errors import TunefleetError

What = Literal["workflow", "cancel", "pause", "resume", "command", "artifact", "key", "federation", "campaign"]


@dataclass(frozen=True, slots=True)
class Told:
    """One acknowledged write.

    Args:
        what: Kind of write.
        id: Of what was written, as the server named it.
        facts: What the answer said beside.
    """

    what: What
    id: str
    facts: Mapping[str, Any] = field(default_factory=dict)


class Ledger:
    """Written by clients in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.told: list[Told] = []
        self.unknown: list[tuple[What, str, str]] = []
        """Writes without an answer: kind, what the client calls it, and the error."""

    def note(self, what: What, id_: str, **facts: Any) -> None:
        """Write down an acknowledgement."""
        with self._lock:
            self.told.append(Told(what, id_, facts))

    @contextmanager
    def asking(self, what: What, name: str) -> Iterator[None]:
        """Write down that a write has no answer, if it ends in an error."""
        try:
            yield
        except TunefleetError as error:
            with self._lock:
                self.unknown.append((what, name, str(error)))

    def all(self, what: What) -> list[Told]:
        """Return the acknowledged writes of a kind."""
        with self._lock:
            return [each for each in self.told if each.what == what]
