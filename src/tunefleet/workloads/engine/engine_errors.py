"""What can be wrong with a single request."""

from __future__ import annotations

from tunefleet.errors import InputError


class RequestError(InputError):
    """A request cannot be answered; the others can.

    Args:
        message: As `InputError` has it.
        key: Of the request.
        hint: As `InputError` has it.
    """

    code = "request_invalid"

    def __init__(self, message: str, *, key: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key


class GoneError(Exception):
    """Whoever asked does not listen any more; nothing is wrong."""
