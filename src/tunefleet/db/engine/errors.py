"""Translates database errors into messages, without the driver's details of rows and addresses."""

from __future__ import annotations

from typing import Final

from sqlalchemy.exc import DBAPIError

from tunefleet.errors import StoreError

_AGAIN: Final = "Try again in a moment. Check that PostgreSQL is running and reachable from the server."
_GRANT: Final = "Make the role the owner: ALTER DATABASE … OWNER TO …, or GRANT ALL ON SCHEMA public TO …"
# Keyed by an SQLSTATE or its first two characters.
_STATES: Final[dict[str, tuple[str, str]]] = {
    "53100": ("The disk of the database is full.", "Free some space there, or run `tunefleet prune`."),
    "53300": ("PostgreSQL has no free connection.", "Raise its max_connections: a server uses seven."),
    "25006": ("The database is read-only.", "Use the URL of the primary, and a role with write permission."),
    "42501": ("The database role lacks a permission.", _GRANT),
    "28": ("PostgreSQL rejects the server's role or password.", "Check TUNEFLEET_DATABASE_URL."),
    "3D000": ("The database does not exist.", "Create it: CREATE DATABASE …"),
    "XX001": ("The database is damaged.", "Restore it from a backup."),
    "XX002": ("The database is damaged.", "Restore it from a backup."),
}
_LOST: Final = ("08", "57P", "25P03")
_OPENING: Final = (
    ("password authentication failed", "Check the user and password in TUNEFLEET_DATABASE_URL."),
    ("no password supplied", "Add the password to TUNEFLEET_DATABASE_URL."),
    ("pg_hba.conf", "Allow the role from this host in PostgreSQL's pg_hba.conf."),
    ("database", "Create it: CREATE DATABASE …, or check the name in TUNEFLEET_DATABASE_URL."),
    ("role", "Create the role: CREATE ROLE … LOGIN PASSWORD …, or check the user in TUNEFLEET_DATABASE_URL."),
)
_DEFAULT_HINT: Final = "Check the host and port in TUNEFLEET_DATABASE_URL, and that PostgreSQL is running there."


# Replaces NUL, which program output may contain and PostgreSQL cannot store, with its control picture.
def is_psycopg(error: DBAPIError) -> bool:
    """Return whether an error comes from PostgreSQL's driver."""
    return type(error.orig).__module__.partition(".")[0] == "psycopg"


def is_lost(error: BaseException) -> bool:
    """Return whether the connection to the database broke, or could not be established."""
    if isinstance(error, StoreError) and error.__cause__ is not None:
        error = error.__cause__
    if not isinstance(error, DBAPIError) or not is_psycopg(error):
        return False
    state = _state(error)
    if error.connection_invalidated or (state or "").startswith(_LOST):
        return True
    return state is None and type(error.orig).__name__ in {"OperationalError", "ConnectionTimeout"}


def _translate_postgres(error: DBAPIError) -> StoreError:
    """Return the exception to raise for an error of PostgreSQL's driver."""
    if is_lost(error):
        return StoreError("The database is unreachable.", hint=_AGAIN)
    state = _state(error) or ""
    for known in (state, state[:2]):
        if known in _STATES:
            message, hint = _STATES[known]
            return StoreError(message, hint=hint)
    primary = getattr(getattr(error.orig, "diag", None), "message_primary", None) or type(error.orig).__name__
    return StoreError(f"The database rejected an operation ({primary}).")


def _outcome_unknown() -> StoreError:
    """Return the exception to raise if the outcome of a commit is unknown."""
    return StoreError(
        "The database connection broke during the commit: the outcome of the change is unknown.",
        hint="Repeat the request. A request with an id or an Idempotency-Key takes effect once.",
    )


def cannot_be_used(name: str, error: DBAPIError, password: object) -> StoreError:
    """Return the exception to raise for a database that cannot be opened."""
    state, hint = _state(error), _DEFAULT_HINT
    if state is not None and not is_lost(error):
        translated = _translate_postgres(error)
        reason, hint = translated.message, translated.hint or _DEFAULT_HINT
        if state == "42501":
            reason = f"{reason} ({_reason(error)})"
    else:
        reason = _reason(error)
        hint = next((hint for words, hint in _OPENING if words in reason), _DEFAULT_HINT)
    if password and len(str(password)) > 3:  # replacing a shorter one would garble the message
        reason = reason.replace(str(password), "***")
    return StoreError(f"Cannot open the database {name}: {reason.rstrip('.')}.", hint=hint)


def _reason(error: DBAPIError) -> str:
    """Return the reason from the driver's lines, which has one line per address."""
    lines = [line.strip() for line in str(error.orig).splitlines() if line.strip()]
    reasons = [line for line in lines if not line.endswith("?")]
    fatal = [line.rpartition("FATAL:")[2] for line in reasons if "FATAL:" in line]
    return (fatal or [line.rpartition(" failed: ")[2] for line in reasons] or ["no reason given"])[-1].strip()


def _state(error: DBAPIError) -> str | None:
    state = getattr(error.orig, "sqlstate", None)
    return state if isinstance(state, str) else None


def translate(error: BaseException) -> BaseException:
    """Return the exception to raise for a database driver's error; other errors are returned unchanged."""
    if not isinstance(error, DBAPIError):
        return error
    if is_psycopg(error):
        return _with_cause(_translate_postgres(error), error)
    text = str(error.orig)
    if "full" in text:
        fault = StoreError("The disk of the data folder is full.", hint="Free some space, or run `tunefleet prune`.")
    elif "malformed" in text or "not a database" in text:
        fault = StoreError(
            f"The database is damaged ({text}).",
            hint="Restore the data folder from a backup, or start with another folder (--data).",
        )
    elif "readonly" in text:
        fault = StoreError("The database is read-only.", hint="Check the owner and permissions of the data folder.")
    else:
        fault = StoreError(f"The database rejected an operation ({text}).")
    return _with_cause(fault, error)


def unsure(error: BaseException) -> StoreError:
    """Return the exception to raise if the outcome of a commit is unknown."""
    return _with_cause(_outcome_unknown(), error.__cause__ or error)


def _with_cause(fault: StoreError, error: BaseException) -> StoreError:
    fault.detail = str(error)
    fault.__cause__ = error
    return fault
