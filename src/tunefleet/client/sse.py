"""Parses server-sent events from lines, as in the HTML standard; opens nothing."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a stream."""

    event: str
    data: str
    id: str


@dataclass(slots=True)
class SseReader:
    """Takes lines without line ends, and returns an event when it is complete."""

    last_id: str = ""
    _event: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, line: str) -> ServerEvent | None:
        """Parse a line; an empty one ends an event."""
        if not line:
            return self._finish()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
            case "event":
                self._event = value
            case "id":
                self.last_id = value
        return None

    def _finish(self) -> ServerEvent | None:
        event = ServerEvent(self._event or "message", "\n".join(self._data), self.last_id) if self._data else None
        self._event, self._data = "", []
        return event
