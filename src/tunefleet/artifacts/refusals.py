"""Translates errors of object stores: full, rejected keys, wrong clock, missing bucket, no response."""

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


def store_error(
    name: str, code: str, status: int, detail: str, *, passes: bool, check: str, variables: str
) -> TunefleetError:
    """Return the exception for a service's error.

    Args:
        name: Name of the store, such as `s3://bucket/prefix`.
        status: HTTP status; 0 without a response.
    """
    if code in _FULL or status == HTTPStatus.INSUFFICIENT_STORAGE:
        return NoRoomError(
            f"The artifact store {name} is full ({code}).",
            hint="Raise its quota or delete old artifacts. Interrupted uploads are kept and resume.",
            detail=detail,
        )
    if passes or status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _LATER:
        return UnreachableError(
            f"The artifact store {name} is unavailable: {code}.",
            hint=f"Check {check}, or try again later.",
            detail=detail,
        )
    if code in _CLOCK:
        hint = "The clocks of this server and the store differ too much: synchronize them with NTP."
    elif code in _KEYS:
        hint = f"The keys are rejected, expired or lack permissions: update {variables} and restart the server."
    elif code in _NO_PLACE:
        hint = "Create it, or correct TUNEFLEET_ARTIFACTS."
    else:
        hint = f"Check the server's TUNEFLEET_ARTIFACTS, {variables} and their permissions."
    return MachineError(f"The artifact store {name} is unusable: {code}.", hint=hint, detail=detail)
