"""How files come to this worker and leave it: where from, where to, how fast, packed how."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tunefleet.artifacts import Packing
from tunefleet.client.throttle import Throttle
from tunefleet.errors import ForbiddenError, InputError
from tunefleet.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class Transfers:
    """Limits and ways of one worker.

    Args:
        server_url: The server, as this worker knows it.
        folders: The only folders that a document may name by absolute path.
        url_allow: Hosts and networks in private ranges that a document may name.
        throttle: Holds all transfers together to a speed; null for none.
        packing: How archives are compressed.
        patience_s: How long a delivery to an address of a document is tried again.
        cleanup: Whether what was delivered is deleted here.
    """

    server_url: str = ""
    folders: tuple[Path, ...] = ()
    url_allow: tuple[str, ...] = ()
    throttle: Throttle | None = None
    packing: Packing = field(default_factory=Packing)
    patience_s: float = 86_400.0
    cleanup: bool = False

    def inside(self, path: Path, what: str) -> Path:
        """Return an absolute path, links resolved, that a document may name.

        Args:
            path: As the document names it, existing or not.
            what: The key that names it, for the message.

        Raises:
            ForbiddenError: If it lies outside of the folders.
        """
        found = path.resolve()
        if not any(found.is_relative_to(folder.resolve()) for folder in self.folders):
            raise ForbiddenError(
                f"{what}: {path} is not in a folder of this worker that documents may name.",
                hint="Name a path in its RESULTS_DIR, or start the worker with TUNEFLEET_SHARED_DIRS.",
            )
        return found

    def existing(self, text: str, what: str) -> Path | None:
        """Return a path that a document may name, if something is there; relative ones are below RESULTS_DIR.

        Raises:
            InputError: If it is a forbidden one; a document's mistake, which no repetition mends.
        """
        path = Path(text)
        try:
            found = self.inside(path if path.is_absolute() or not self.folders else self.folders[0] / path, what)
        except ForbiddenError as error:
            raise InputError(error.message, hint=error.hint) from error
        return found if found.exists() else None


def of(settings: WorkerSettings, results_dir: Path) -> Transfers:
    """Return what a worker's settings say."""
    speed = settings.bandwidth_bytes_per_s
    shared = (Path(folder).expanduser().absolute() for folder in settings.shared_dirs)
    return Transfers(
        server_url=settings.server_url,
        folders=(results_dir, *shared),
        url_allow=settings.url_allow,
        throttle=None if speed is None else Throttle(speed),
        packing=Packing(
            level=settings.archive_level,
            pigz=settings.archive_pigz_bin if settings.archive_pigz else None,
            threads=settings.archive_pigz_threads,
        ),
        patience_s=settings.delivery_patience_s,
        cleanup=settings.cleanup_after_upload,
    )
