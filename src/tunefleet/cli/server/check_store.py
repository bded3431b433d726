"""The check of `tunefleet doctor` that tries the server's store of files."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from tunefleet.cli.server.check_result import Finding, bad, good
from tunefleet.errors import TunefleetError
from tunefleet.settings import ServerSettings, load


def artifact_store() -> Finding:
    """Check that the server's files can be written, read and removed where the settings say; leaves nothing there."""
    from tunefleet.orchestrator.storage.blob_stores import kind, open_blobs
    from tunefleet.orchestrator.storage.store_probe import prove

    settings = load(ServerSettings)
    name, folder = settings.artifacts or str(settings.data_dir / "artifacts"), settings.data_dir / "artifacts"
    if settings.artifacts is None and not folder.exists():
        return good("Artifact store", f"{folder} will be made at the first start")
    # Why something cannot be removed is said once, as a finding.
    log = logging.getLogger("tunefleet.artifacts")
    level, log.disabled = log.disabled, True
    try:
        with tempfile.TemporaryDirectory(prefix="tunefleet-doctor-") as here:
            # What a store elsewhere gathers before it sends it does not go into the data folder.
            away = {} if settings.artifacts is None else {"data": Path(here)}
            blobs = open_blobs(settings.model_copy(update=away))
            try:
                prove(blobs)
            finally:
                blobs.close()
    except (TunefleetError, OSError) as error:
        hint = error.hint if isinstance(error, TunefleetError) else None
        return bad("Artifact store", f"{name}: {error}", hint or "Check TUNEFLEET_ARTIFACTS, its keys and the network.")
    finally:
        log.disabled = level
    return good("Artifact store", f"{name} ({kind(settings)}): a file was written, read and removed")
