"""The exceptions that Tunefleet raises deliberately.

    TunefleetError
    ├── SpecError            a workflow, campaign or federation file is invalid (lists every error)
    ├── InputError           data, a model or a value that a user named cannot be used
    │   ├── DataError        a dataset is missing, empty or lacks a field
    │   ├── ModelError       a model or tokenizer is missing or cannot be loaded
    │   ├── ReferenceFault   a reference to another task's result has no value
    │   └── AdapterRefused   an adapter cannot be aggregated; names the tensor
    ├── NotFoundError        nothing has that id or name
    ├── ConflictError        the resource is in a state that does not allow the request
    │   ├── IllegalTransition   a status change that the lifecycle table does not allow
    │   ├── OffsetConflict   a stream was continued at the wrong offset; carries the right one
    │   └── GoneError        the resource has permanently ended or moved
    ├── AuthError            no key, or a key that is invalid or revoked
    ├── ForbiddenError       a valid key without permission
    ├── TooLargeError        a body, file or archive exceeds its limit
    ├── QuotaError           a project exceeds a quota; names it
    ├── TooManyError         rate limited; states when to retry
    ├── ArtifactError        files that do not match their digest, or an unsafe archive
    ├── StoreError           the database or data folder cannot be used
    ├── UnreachableError     the server, or a service that it needs, does not respond
    │   └── NotLeadingError  a former leader attempted an operation that is reserved to the leader
    └── MachineError         a port, disk space, a device or a package is unavailable on this machine

`str(error)` and `error.hint` are for the user and may be shown to the caller; `error.detail` is for logs only and is
never sent over the network.
"""

from __future__ import annotations

import errno
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from typing import ClassVar, Final
from urllib.parse import unquote, urlsplit

_MAX_PATH: Final = 400


class TunefleetError(Exception):
    """A known failure, with a message for the user.

    Args:
        message: One sentence that names the resource; public.
        hint: How to fix it; public.
        detail: Details for maintainers; private, for logs.
    """

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str | None = None, detail: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


def printable(text: str, keep: str = "") -> str:
    """Escape control characters, such as terminal escape codes, in a string.

    Args:
        text: Text from an untrusted source.
        keep: Control characters to keep, such as line breaks.
    """
    return text if text.isprintable() else "".join(_escaped(each, keep) for each in text)


def _escaped(character: str, keep: str) -> str:
    return character if character.isprintable() or character in keep else character.encode("unicode_escape").decode()


@dataclass(frozen=True, slots=True)
class Fault:
    """One error in a workflow file.

    Args:
        path: Dotted path of the field, such as ``spec.training.learning_rate``.
        message: What is wrong, without the position.
        line: Line in the file, from 1; 0 if unknown.
        column: Column in the file, from 1; 0 if unknown.
        hint: How to fix it, if known.
    """

    path: str
    message: str
    line: int = 0
    column: int = 0
    hint: str | None = None

    def __post_init__(self) -> None:
        # All three may quote user input, which must not inject escape codes into the terminal that shows it.
        object.__setattr__(self, "path", printable(self.path)[:_MAX_PATH])
        object.__setattr__(self, "message", printable(self.message))
        object.__setattr__(self, "hint", None if self.hint is None else printable(self.hint))

    def __str__(self) -> str:
        position = f"line {self.line}, column {self.column}: " if self.line else ""
        path = f"{self.path}: " if self.path else ""
        return f"{position}{path}{self.message}{f' ({self.hint})' if self.hint else ''}"


class SpecError(TunefleetError):
    """A workflow, campaign or federation file is invalid; every error is listed."""

    code = "spec_invalid"

    def __init__(self, faults: Sequence[Fault], *, filename: str | None = None) -> None:
        self.faults = tuple(faults)
        self.filename = filename
        name = filename or "the file"
        count = "1 error" if len(self.faults) == 1 else f"{len(self.faults)} errors"
        super().__init__(f"{name} has {count}: " + "; ".join(str(fault) for fault in self.faults))


class InputError(TunefleetError):
    """A value, name or file from the user cannot be used; retrying does not help.

    Args:
        message: One sentence that names the resource; public.
        hint: How to fix it; public.
        detail: Details for maintainers.
        path: Dotted path of the error in the workflow file; empty if unknown.
    """

    code = "input_invalid"

    def __init__(self, message: str, *, hint: str | None = None, detail: str | None = None, path: str = "") -> None:
        super().__init__(message, hint=hint, detail=detail)
        self.path = path


class DataError(InputError):
    """A dataset is missing or empty, or lacks a column."""

    code = "data_invalid"


class ModelError(InputError):
    """A model or tokenizer is missing or cannot be loaded."""

    code = "model_invalid"


class ReferenceFault(InputError):
    """A reference to another task's result has no value."""

    code = "reference_invalid"


class AdapterRefused(InputError):
    """An adapter cannot be aggregated, because it is damaged, unsafe or incompatible with the others.

    Args:
        message: What is wrong, with the name of the affected tensor, if any; public.
        hint: How to fix it; public.
        tensor: Name of the affected tensor, if any.
    """

    code = "adapter_refused"

    def __init__(
        self, message: str, *, hint: str | None = None, detail: str | None = None, tensor: str | None = None
    ) -> None:
        super().__init__(message, hint=hint, detail=detail)
        self.tensor = tensor


class NotFoundError(TunefleetError):
    """No resource has this id or name."""

    code = "not_found"


class ConflictError(TunefleetError):
    """The resource is in a state that does not allow the request."""

    code = "conflict"


class IllegalTransition(ConflictError):
    """The lifecycle table does not allow this status change."""

    code = "illegal_transition"


class OffsetConflict(ConflictError):
    """A stream was continued at the wrong offset.

    Args:
        cursor: The next sequence number or byte that the receiver expects.
    """

    code = "offset_conflict"

    def __init__(self, message: str, *, cursor: int) -> None:
        super().__init__(message)
        self.cursor = cursor


class GoneError(ConflictError):
    """The resource has ended or moved permanently; retrying does not help."""

    code = "gone"


class AuthError(TunefleetError):
    """The API key is missing, invalid or revoked."""

    code = "unauthenticated"


class ForbiddenError(TunefleetError):
    """The key is valid but lacks the required permission."""

    code = "forbidden"


class TooLargeError(TunefleetError):
    """A body, a file or an archive exceeds its limit."""

    code = "too_large"


class QuotaError(TunefleetError):
    """A project would exceed one of its quotas."""

    code = "over_quota"


class TooManyError(TunefleetError):
    """Too many requests or login attempts.

    Args:
        retry_after_s: Seconds until the next attempt is allowed.
    """

    code = "too_many"

    def __init__(self, message: str, *, hint: str | None = None, retry_after_s: int) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class ArtifactError(TunefleetError):
    """Files do not match their digest, or an archive is unsafe."""

    code = "artifact_invalid"


class StoreError(TunefleetError):
    """The database or the data folder cannot be used."""

    code = "store_unusable"


class UnreachableError(TunefleetError):
    """A server, or a service that it needs, does not respond."""

    code = "unreachable"


class UnavailableError(UnreachableError):
    """What should answer is not ready.

    Args:
        retry_after_s: Seconds after which the client should try again.
    """

    def __init__(self, message: str, *, hint: str | None = None, retry_after_s: int = 5) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class NotLeadingError(UnreachableError):
    """Another server is the leader: the operation was not executed; a retry helps."""


class MachineError(TunefleetError):
    """A port, disk space, a device or a package is unavailable on this machine."""

    code = "machine"


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error means that a disk or a disk quota is full."""
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}


def install_command(extra: str) -> str:
    """Return the command that installs an extra, from the source of the installed package.

    Args:
        extra: Name of the extra, such as `train`.
    """
    return f"{shlex.quote(sys.executable)} -m pip install {_requirement(extra)}"


def _requirement(extra: str) -> str:
    # `direct_url.json` (PEP 610) records a checkout, URL or VCS commit: the extra must come from the same source.
    try:
        origin = json.loads(distribution("tunefleet").read_text("direct_url.json") or "null") or {}
    except (PackageNotFoundError, ValueError):
        origin = {}
    url, vcs = origin.get("url", ""), origin.get("vcs_info")
    if vcs:
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    if origin.get("dir_info") is not None:
        folder = shlex.quote(f"{unquote(urlsplit(url).path)}[{extra}]")
        return f"-e {folder}" if origin["dir_info"].get("editable") else folder
    return shlex.quote(f"tunefleet[{extra}] @ {url}" if url else f"./tunefleet-VERSION-py3-none-any.whl[{extra}]")
