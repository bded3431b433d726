"""What Redis refuses or fails to do, in our words: which server, which command, which right, and the way out."""

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

# Where the repository has the rights that this link takes.
ACL_FILE: Final = "deploy/redis/users.acl"
_WORDS: Final = 300
_AUTH_WORDS: Final = ("WRONGPASS", "NOAUTH", "invalid username-password", "invalid password")


def shown(url: str) -> str:
    """Return a Redis URL without its password."""
    parts = urlsplit(url)
    host = parts.hostname or parts.path
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path if parts.hostname else ''}"


def user_of(url: str) -> str:
    """Return the name that a Redis URL logs in with."""
    return urlsplit(url).username or "default"


def is_gone_group(error: BaseException) -> bool:
    """Whether a consumer group is missing: its stream was deleted, or all of Redis was emptied."""
    return isinstance(error, ResponseError) and str(error).startswith(("NOGROUP", "UNBLOCKED"))


def is_refusal(error: BaseException) -> bool:
    """Whether Redis answers and refuses: a password or a right is missing, which no repetition mends."""
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
        return True
    return isinstance(error, ResponseError) and any(words in str(error) for words in _AUTH_WORDS)


def explained(error: Exception, url: str, doing: str, *, first: bool = False) -> UnreachableError | MachineError:
    """Return what a failed command means.

    Args:
        doing: Command and key, such as `XADD tasks.events`.
    """
    where, words = shown(url), str(error)[:_WORDS]
    if is_refusal(error):
        kind = MachineError if first else UnreachableError
        if isinstance(error, NoPermissionError):
            return kind(
                f"Redis at {where} does not let the user {user_of(url)!r} do {doing}: {words}.",
                hint=f"Let an admin of that Redis grant it (ACL SETUSER; all that is needed is in {ACL_FILE}), or use "
                "another user in REDIS_URL.",
            )
        return kind(
            f"Redis at {where} does not take the login of the user {user_of(url)!r}: {words}.",
            hint=f"Mend REDIS_URL, or the user's line in the ACL file of that Redis ({ACL_FILE}).",
        )
    if "SSL" in words:
        return _not_encrypted(MachineError if first else UnreachableError, where, words)
    if isinstance(error, OutOfMemoryError) or "OOM" in words:
        return UnreachableError(
            f"Redis at {where} is full (maxmemory): it refuses {doing}.",
            hint="Give it more memory or remove what does not belong to the fleet; nothing is lost meanwhile.",
        )
    if isinstance(error, ReadOnlyError):
        return UnreachableError(f"Redis at {where} is a read-only replica.", hint="Let REDIS_URL name the primary.")
    if isinstance(error, BusyLoadingError):
        return UnreachableError(f"Redis at {where} is still loading its data.")
    if isinstance(error, ResponseError):
        return UnreachableError(f"Redis at {where} refuses {doing}: {words}.", detail=repr(error))
    assert isinstance(error, RedisError | OSError)
    hint = None
    if where.startswith("rediss:") and "connecting to" not in words:
        # TLS 1.3 tells a client late that its certificate is missed: it often sees the connection end before.
        hint = "If it asks its clients for a certificate, set TUNEFLEET_REDIS_CERT_FILE and TUNEFLEET_REDIS_KEY_FILE."
    return UnreachableError(f"Redis at {where} does not answer.", hint=hint, detail=repr(error)[:_WORDS])


def _not_encrypted(
    kind: type[MachineError | UnreachableError], where: str, words: str
) -> UnreachableError | MachineError:
    if "CERTIFICATE_VERIFY_FAILED" in words:
        return kind(
            f"Redis at {where} shows a certificate that is not trusted: {words}.",
            hint="Let TUNEFLEET_REDIS_CA_FILE name the authority that signed it, and REDIS_URL a name that it is for.",
        )
    if "CERTIFICATE_REQUIRED" in words or "HANDSHAKE_FAILURE" in words:
        return kind(
            f"Redis at {where} asks for a certificate: {words}.",
            hint="Set TUNEFLEET_REDIS_CERT_FILE and TUNEFLEET_REDIS_KEY_FILE, or let it ask for none "
            "(tls-auth-clients no) and for a password instead.",
        )
    return kind(f"TLS to Redis at {where} fails: {words}.", hint="Is it the port for TLS that REDIS_URL names?")
