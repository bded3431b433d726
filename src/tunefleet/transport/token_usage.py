"""Token usage of OpenAI responses, also of streams whose clients did not request it."""

from __future__ import annotations

from typing import Any, Final

import orjson

from tunefleet.schemas.endpoints import TokenUsage

_COMPLETIONS: Final = ("chat/completions", "completions")
# A response that is not a stream is parsed as a whole; larger ones are relayed without being counted.
_MAX_PARSED: Final = 32 << 20


def with_usage(path: str, body: bytes) -> tuple[bytes, bool]:
    """Return the body of a request with usage requested, and whether the client itself did not request it."""
    if path not in _COMPLETIONS:
        return body, False
    try:
        read = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body, False  # the engine rejects it
    if not isinstance(read, dict) or read.get("stream") is not True:
        return body, False
    options = read.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage") is True:
        return body, False
    rest = options if isinstance(options, dict) else {}
    return orjson.dumps({**read, "stream_options": {**rest, "include_usage": True}}), True


class UsageReader:
    """Reads the usage from a response that passes through.

    Args:
        hides: Whether the event with the usage is removed from a stream, because the client did not request it.
    """

    def __init__(self, *, stream: bool, hides: bool) -> None:
        self._stream = stream
        self._hides = hides
        self._rest = bytearray()
        self.usage: TokenUsage | None = None

    def pass_on(self, data: bytes) -> bytes:
        """Take the next bytes of a response and return those to send."""
        if not self._stream:
            if len(self._rest) <= _MAX_PARSED:
                self._rest += data
            return data
        self._rest += data
        # Only complete events are sent, so that a stream that breaks off never ends within one.
        *events, rest = bytes(self._rest).split(b"\n\n")
        self._rest = bytearray(rest)
        return b"".join(event + b"\n\n" for event in events if not self._is_hidden(event))

    def finish(self) -> bytes:
        """Return the remaining bytes."""
        if self._stream:
            return bytes(self._rest)
        if len(self._rest) <= _MAX_PARSED:
            self._note(bytes(self._rest))
        return b""

    def _is_hidden(self, event: bytes) -> bool:
        if b'"usage"' not in event or not event.startswith(b"data: "):
            return False
        found = self._note(event.removeprefix(b"data: "))
        return self._hides and found.get("choices") == [] and self.usage is not None

    def _note(self, text: bytes) -> dict[str, Any]:
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError:
            return {}
        usage = found.get("usage") if isinstance(found, dict) else None
        if isinstance(usage, dict):
            prompt, completion = (usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
            self.usage = TokenUsage(prompt_tokens=prompt or 0, completion_tokens=completion or 0)
        return found if isinstance(found, dict) else {}
