"""What a store's refusal means, in our words: full, refused keys, a wrong clock, no such bucket, no answer."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from tunefleet.artifacts.blobs import NoRoomError
from tunefleet.errors import MachineError, TunefleetError, UnreachableError

_FULL: Final = frozenset(
    {"AccountStorageLimitExceeded", "InsufficientStorage", "QuotaExceeded", "StorageFull", "XMinioStorageFull"}
)
_CLOCK: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_KEYS: Final = frozenset(
    {
        "AccessDenied", "AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch",
        "ExpiredToken", "Forbidden", "InvalidAccessKeyId", "InvalidToken", "NoCredentialsError", "RefreshError",
        "SignatureDoesNotMatch", "TokenRefreshRequired", "UserSuspended", "403", "401",
    }
)  # fmt: skip
_NO_PLACE: Final = frozenset({"ContainerNotFound", "NoSuchBucket"})
_LATER: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


def in_our_words(
    name: str, said: str, status: int, detail: str, *, passes: bool, check: str, variables: str
) -> TunefleetError:
    """Return the error for what a service said.

    Args:
        name: Of the place, such as `s3://bucket/prefix`.
        status: Its HTTP status; 0 if there was no answer.
    """
    if said in _FULL or status == HTTPStatus.INSUFFICIENT_STORAGE:
        return NoRoomError(
            f"The artifact store {name} cannot be used: it is full ({said}).",
            hint="Raise its quota or remove old artifacts; what was sent is kept and goes on.",
            detail=detail,
        )
    if passes or status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _LATER:
        return UnreachableError(
            f"The artifact store {name} does not answer as it should: {said}.",
            hint=f"Check {check}, or try again later.",
            detail=detail,
        )
    if said in _CLOCK:
        hint = "The clock of this server and that of the store differ by too much: set it (NTP)."
    elif said in _KEYS:
        hint = f"Its keys are refused, have expired or may not do this: renew {variables} and start the server again."
    elif said in _NO_PLACE:
        hint = "Make it, or correct TUNEFLEET_ARTIFACTS."
    else:
        hint = f"Check the server's TUNEFLEET_ARTIFACTS, {variables} and what they may do."
    return MachineError(f"The artifact store {name} cannot be used: {said}.", hint=hint, detail=detail)
