"""`worker.log`: what the worker says, in its folder too, put aside when it has grown."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunefleet.errors import MachineError
from tunefleet.observability.logs import PrivateLogFile, formatter
from tunefleet.settings import WorkerSettings


@contextmanager
def kept(settings: WorkerSettings, results_dir: Path) -> Iterator[None]:
    """Write the log to a file too while the body runs.

    Args:
        settings: Which file, if not `worker.log`, and how much of it.
        results_dir: The worker's folder.

    Raises:
        MachineError: If the file cannot be written.
    """
    path = settings.log_file.expanduser() if settings.log_file is not None else results_dir / "worker.log"
    try:
        handler = PrivateLogFile(
            path, maxBytes=settings.log_max_bytes, backupCount=settings.log_backup_count, encoding="utf-8"
        )
    except OSError as error:
        raise MachineError(
            f"The log {path} cannot be written: {error.strerror or error}.", hint="Mend LOG_FILE or its folder."
        ) from error
    handler.setFormatter(formatter(settings.log_format))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
