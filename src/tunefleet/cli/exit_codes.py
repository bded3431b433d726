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
    """It did what was asked."""
    FAILED = 1
    """A task or a command of `control` that was waited for failed, or a check of `doctor`; or an error has no code."""
    USAGE = 2
    """The command line itself is wrong: an unknown command or option, a missing argument."""
    INVALID = 3
    """A document, a dataset, a model or a value cannot be used; trying again will not help."""
    NOT_FOUND = 4
    """Nothing has that id or name."""
    CONFLICT = 5
    """The thing is in a state that forbids the request, or a quota is used up."""
    DENIED = 6
    """There is no key, the key is wrong or revoked, or it may not do this."""
    UNREACHABLE = 7
    """The server, or something that it needs, does not answer, or wants to be asked later."""
    MACHINE = 8
    """This machine lacks something: a port, disk space, a device, a package; or a data folder cannot be used."""
    CANCELLED = 9
    """The task that was waited for was cancelled, or the job that was watched was aborted."""
    TIMED_OUT = 10
    """The end of a task or the outcome of a command of `control` did not come in time; it is still to come."""
    BUG = 70
    """An error that Tunefleet does not understand. Please report it."""
    MADE_WAY = 75
    """`worker --once` gave its task back because its node is taken away; started again, it goes on."""
    INTERRUPTED = 130
    """Ctrl-C."""


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
