"""The exceptions that Tunefleet raises on purpose.

    TunefleetError
    ├── SpecError            a document that a user wrote is wrong (lists every fault)
    ├── InputError           data, a model or a value that a user named cannot be used
    │   ├── DataError        a dataset is missing, empty or lacks a field
    │   ├── ModelError       a model or tokenizer is missing or cannot be loaded
    │   ├── ReferenceFault   a reference to another task's result has no value there
    │   └── AdapterRefused   an adapter cannot take part in an average; names the tensor
    ├── NotFoundError        nothing has that id or name
    ├── ConflictError        the thing is in a state that forbids the request
    │   ├── IllegalTransition   a status change that the lifecycle table does not have
    │   ├── OffsetConflict   a stream was continued at the wrong place; carries the right one
    │   └── GoneError        the thing has ended, or has moved, for good
    ├── AuthError            no key, or a key that is wrong or revoked
    ├── ForbiddenError       a valid key that may not do this
    ├── TooLargeError        a body, file or archive over its limit
    ├── QuotaError           a project is over one of its quotas; names it
    ├── TooManyError         tried too often; says when to try again
    ├── ArtifactError        files that do not match their digest, or an unsafe archive
    ├── StoreError           the database or data folder cannot be used
    ├── UnreachableError     the server, or something that it needs, does not answer
    │   └── NotLeadingError  a server that leads no more wanted to do what the leader alone does
    └── MachineError         this machine lacks something: a port, disk, a device, a package

`str(error)` and `error.hint` are for the user and may be shown to anybody who made the request; `error.detail` is
for logs only and is never sent over the network.
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


class TunefleetError(Exception):
    """A failure that Tunefleet understands.

    Args:
        message: One sentence that names the thing; public.
        hint: The way out; public.
        detail: What a maintainer needs; private, for logs.
    """

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str | None = None, detail: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


_MAX_PATH: Final = 400


def printable(text: str, keep: str = "") -> str:
    """Return a text that commands no terminal: what is no plain character, such as an escape code, is spelt out.

    Args:
        text: What somebody else wrote.
        keep: Characters that stay although they are not plain, such as the end of a line.
    """
    return text if text.isprintable() else "".join(_spelt(each, keep) for each in text)


def _spelt(character: str, keep: str) -> str:
    return character if character.isprintable() or character in keep else character.encode("unicode_escape").decode()


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong in a document.

    Args:
        path: Dotted path of the field, such as ``spec.training.learning_rate``.
        message: What is wrong, without the position.
        line: Line of the document, from 1; 0 if unknown.
        column: Column of the document, from 1; 0 if unknown.
        hint: What to write instead, if that is known.
    """

    path: str
    message: str
    line: int = 0
    column: int = 0
    hint: str | None = None

    def __post_init__(self) -> None:
        # All three may quote what somebody wrote, which must not command the terminal that shows it.
        object.__setattr__(self, "path", printable(self.path)[:_MAX_PATH])
        object.__setattr__(self, "message", printable(self.message))
        object.__setattr__(self, "hint", None if self.hint is None else printable(self.hint))

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}: " if self.line else ""
        where = f"{self.path}: " if self.path else ""
        return f"{place}{where}{self.message}{f' ({self.hint})' if self.hint else ''}"


class SpecError(TunefleetError):
    """A document is wrong; every fault is listed."""

    code = "spec_invalid"

    def __init__(self, faults: Sequence[Fault], *, filename: str | None = None) -> None:
        self.faults = tuple(faults)
        self.filename = filename
        name = filename or "the document"
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        super().__init__(f"{name} has {count}: " + "; ".join(str(fault) for fault in self.faults))


class InputError(TunefleetError):
    """Something that the user named cannot be used; trying again will not help.

    Args:
        message: One sentence that names the thing; public.
        hint: The way out; public.
        detail: What a maintainer needs.
        path: Dotted path in the document of what is wrong; empty if it stands in none.
    """

    code = "input_invalid"

    def __init__(self, message: str, *, hint: str | None = None, detail: str | None = None, path: str = "") -> None:
        super().__init__(message, hint=hint, detail=detail)
        self.path = path


class DataError(InputError):
    """A dataset is missing, empty, or lacks a field."""

    code = "data_invalid"


class ModelError(InputError):
    """A model or tokenizer is missing or cannot be loaded."""

    code = "model_invalid"


class ReferenceFault(InputError):
    """A reference to another task's result has no value there."""

    code = "reference_invalid"


class AdapterRefused(InputError):
    """An adapter is damaged, unsafe, or not what the others are: it cannot take part in an average.

    Args:
        message: What is wrong, with the tensor's name where one is to blame; public.
        hint: The way out; public.
        tensor: Name of the tensor to blame, if there is one.
    """

    code = "adapter_refused"

    def __init__(
        self, message: str, *, hint: str | None = None, detail: str | None = None, tensor: str | None = None
    ) -> None:
        super().__init__(message, hint=hint, detail=detail)
        self.tensor = tensor


class NotFoundError(TunefleetError):
    """Nothing has that id or name."""

    code = "not_found"


class ConflictError(TunefleetError):
    """The thing is in a state that forbids the request."""

    code = "conflict"


class IllegalTransition(ConflictError):
    """The lifecycle table has no such change of status."""

    code = "illegal_transition"


class OffsetConflict(ConflictError):
    """A stream was continued at the wrong place.

    Args:
        cursor: Where the receiver stands: the next sequence number or byte that it takes.
    """

    code = "offset_conflict"

    def __init__(self, message: str, *, cursor: int) -> None:
        super().__init__(message)
        self.cursor = cursor


class GoneError(ConflictError):
    """The thing has ended, or has moved, for good; asking again does not help."""

    code = "gone"


class AuthError(TunefleetError):
    """There is no key, or it is wrong or revoked."""

    code = "unauthenticated"


class ForbiddenError(TunefleetError):
    """The key is valid but may not do this."""

    code = "forbidden"


class TooLargeError(TunefleetError):
    """A body, a file or an archive is over its limit."""

    code = "too_large"


class QuotaError(TunefleetError):
    """A project would be over one of its quotas."""

    code = "over_quota"


class TooManyError(TunefleetError):
    """Something was tried too often.

    Args:
        retry_after_s: When to try again.
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
    """A server, or a service that it needs, does not answer."""

    code = "unreachable"


class NotLeadingError(UnreachableError):
    """Another server leads: what this one began as the leader was not done; trying again helps."""


class MachineError(TunefleetError):
    """This machine lacks something: a port, disk space, a device, a package."""

    code = "machine"


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error says that a disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}


def install(extra: str) -> str:
    """Return the command that adds an extra, from where this package came.

    Args:
        extra: Such as `train`.
    """
    return f"{shlex.quote(sys.executable)} -m pip install {_requirement(extra)}"


def _requirement(extra: str) -> str:
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
