"""Say in one sentence what is wrong with a database."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

from tunefleet.errors import StoreError


def translate(error: BaseException) -> BaseException:
    """Return what to raise for an error of the database driver; any other error is returned as it is."""
    if not isinstance(error, DBAPIError):
        return error
    text = str(error.orig)
    if "full" in text:
        fault = StoreError("The disk of the data folder is full.", hint="Free some space, or run `tunefleet prune`.")
    elif "malformed" in text or "not a database" in text:
        fault = StoreError(
            f"The database is damaged ({text}).",
            hint="Restore the data folder from a backup, or start with another folder (--data).",
        )
    elif "readonly" in text:
        fault = StoreError("The database cannot be written to.", hint="Check who owns the data folder.")
    else:
        fault = StoreError(f"The database refused an operation ({text}).")
    fault.detail = str(error)
    fault.__cause__ = error
    return fault
