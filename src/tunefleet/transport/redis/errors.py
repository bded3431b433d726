"""Translates Redis errors: which server, which command, which permission, and the fix."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from tunefleet.errors import MachineError, UnreachableError

# The repository's file with the permissions that this transport needs.
ACL_FILE: Final = "deploy/redis/users.acl"
_WORDS: Final = 300
_AUTH_WORDS: Final = ("WRONGPASS", "NOAUTH", "invalid username-password", "invalid password")


def shown(url: str) -> str:
    """Return a Redis URL without its password."""
    parts = urlsplit(url)
    host = parts.hostname or parts.path
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path if parts.hostname else ''}"


def user_of(url: str) -> str:
    """Return the user name of a Redis URL."""
    return urlsplit(url).username or "default"


def is_gone_group(error: BaseException) -> bool:
    """Return whether a consumer group is missing: its stream was deleted, or Redis was emptied."""
    return isinstance(error, ResponseError) and str(error).startswith(("NOGROUP", "UNBLOCKED"))


def is_refusal(error: BaseException) -> bool:
    """Return whether Redis refuses access: a wrong password or a missing permission, which no retry fixes."""
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
        return True
    return isinstance(error, ResponseError) and any(words in str(error) for words in _AUTH_WORDS)


def explained(error: Exception, url: str, doing: str, *, first: bool = False) -> UnreachableError | MachineError:
    """Return the exception for a failed command.

    Args:
        doing: Command and key, such as `XADD tasks.events`.
    """
    where, words = shown(url), str(error)[:_WORDS]
    if is_refusal(error):
        kind = MachineError if first else UnreachableError
        if isinstance(error, NoPermissionError):
            return kind(
                f"Redis at {where}: the user {user_of(url)!r} has no permission for {doing}: {words}.",
                hint=f"Grant it with ACL SETUSER (the required permissions are in {ACL_FILE}), or use another user in "
                "TUNEFLEET_REDIS_URL.",
            )
        return kind(
            f"Redis at {where} rejects the login of the user {user_of(url)!r}: {words}.",
            hint=f"Check TUNEFLEET_REDIS_URL, or the user's line in the ACL file of that Redis ({ACL_FILE}).",
        )
    if "SSL" in words:
        return _not_encrypted(MachineError if first else UnreachableError, where, words)
    if isinstance(error, OutOfMemoryError) or "OOM" in words:
        return UnreachableError(
            f"Redis at {where} is full (maxmemory): it rejects {doing}.",
            hint="Give it more memory, or delete data of other applications. No data is lost meanwhile.",
        )
    if isinstance(error, ReadOnlyError):
        return UnreachableError(
            f"Redis at {where} is a read-only replica.", hint="Set TUNEFLEET_REDIS_URL to the primary."
        )
    if isinstance(error, BusyLoadingError):
        return UnreachableError(f"Redis at {where} is still loading its data.")
    if isinstance(error, ResponseError):
        return UnreachableError(f"Redis at {where} rejects {doing}: {words}.", detail=repr(error))
    assert isinstance(error, RedisError | OSError)
    hint = None
    if where.startswith("rediss:") and "connecting to" not in words:
        # With TLS 1.3 a client learns late that it must send a certificate: often it only sees the connection end.
        hint = "If it requires a client certificate, set TUNEFLEET_REDIS_CERT_FILE and TUNEFLEET_REDIS_KEY_FILE."
    return UnreachableError(f"Redis at {where} does not respond.", hint=hint, detail=repr(error)[:_WORDS])


def _not_encrypted(
    kind: type[MachineError | UnreachableError], where: str, words: str
) -> UnreachableError | MachineError:
    if "CERTIFICATE_VERIFY_FAILED" in words:
        return kind(
            f"Redis at {where} has an untrusted certificate: {words}.",
            hint="Set TUNEFLEET_REDIS_CA_FILE to its CA certificate, and use a host name of the certificate in "
            "TUNEFLEET_REDIS_URL.",
        )
    if "CERTIFICATE_REQUIRED" in words or "HANDSHAKE_FAILURE" in words:
        return kind(
            f"Redis at {where} requires a client certificate: {words}.",
            hint="Set TUNEFLEET_REDIS_CERT_FILE and TUNEFLEET_REDIS_KEY_FILE, or disable client certificates in Redis "
            "(tls-auth-clients no) and use a password.",
        )
    return kind(f"TLS to Redis at {where} failed: {words}.", hint="Check that TUNEFLEET_REDIS_URL has the TLS port.")
