"""Translates database errors into messages."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

from tunefleet.db.engine import postgres_support
from tunefleet.db.engine.postgres_support import is_lost
from tunefleet.errors import StoreError

__all__ = ["is_lost", "translate", "unsure"]


def translate(error: BaseException) -> BaseException:
    """Return the exception to raise for a database driver's error; other errors are returned unchanged."""
    if not isinstance(error, DBAPIError):
        return error
    if postgres_support.is_psycopg(error):
        return _with_cause(postgres_support.translate(error), error)
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
    return _with_cause(postgres_support.unsure(), error.__cause__ or error)


def _with_cause(fault: StoreError, error: BaseException) -> StoreError:
    fault.detail = str(error)
    fault.__cause__ = error
    return fault
