"""Exit codes of the command line: one enum, documented in `docs/reference/exit-codes.md`."""

from __future__ import annotations

from enum import IntEnum

from tunefleet.errors import (
    ArtifactError,
    AuthError,
    ConflictError,
    ForbiddenError,
    InputError,
    MachineError,
    NotFoundError,
    QuotaError,
    SpecError,
    StoreError,
    TooLargeError,
    TooManyError,
    TunefleetError,
    UnreachableError,
)


class ExitCode(IntEnum):
    """How a command ended; scripts may rely on the numbers."""

    OK = 0
    """Success."""
    FAILED = 1
    """The awaited run or `control` command failed, or a check of `doctor`; or an error without its own code."""
    USAGE = 2
    """The command line is invalid: an unknown command or option, a missing argument."""
    INVALID = 3
    """A workflow file, a dataset, a model or a value is invalid; a retry will not help."""
    NOT_FOUND = 4
    """No resource has this id or name."""
    CONFLICT = 5
    """The object is in a state that forbids the request, or a quota is exhausted."""
    DENIED = 6
    """No key, a wrong or revoked key, or a key without permission."""
    UNREACHABLE = 7
    """The server, or something that it needs, does not respond, or asks to retry later."""
    MACHINE = 8
    """This machine lacks a port, disk space, a device or a package; or a data folder cannot be used."""
    CANCELLED = 9
    """The awaited run was cancelled, or the watched job was aborted."""
    TIMED_OUT = 10
    """The run or the `control` command did not finish in time; it is still running."""
    BUG = 70
    """An unexpected error. Please report it."""
    MADE_WAY = 75
    """`worker --once` returned its run because its node is preempted; started again, the run resumes."""
    INTERRUPTED = 130
    """Ctrl-C."""


# The first match counts; an error without an entry has the code 1.
_BY_ERROR: tuple[tuple[type[TunefleetError], ExitCode], ...] = (
    (SpecError, ExitCode.INVALID),
    (InputError, ExitCode.INVALID),
    (ArtifactError, ExitCode.INVALID),
    (TooLargeError, ExitCode.INVALID),
    (NotFoundError, ExitCode.NOT_FOUND),
    (ConflictError, ExitCode.CONFLICT),
    (QuotaError, ExitCode.CONFLICT),
    (AuthError, ExitCode.DENIED),
    (ForbiddenError, ExitCode.DENIED),
    (UnreachableError, ExitCode.UNREACHABLE),
    (TooManyError, ExitCode.UNREACHABLE),
    (StoreError, ExitCode.MACHINE),
    (MachineError, ExitCode.MACHINE),
)


def exit_code_of(error: TunefleetError) -> ExitCode:
    """Return the exit code of an error."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.FAILED)
