"""`tunefleet debug-dump`: diagnostics in one archive, without secrets."""

from __future__ import annotations

import io
import os
import tarfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.server.dump_collectors import Part, parts
from tunefleet.cli.server.dump_redaction import Redactor
from tunefleet.errors import MachineError

_PRIVATE = 0o600


@examples("tunefleet debug-dump", "tunefleet debug-dump /tmp/what-is-wrong.tar.gz")
def debug_dump(
    file: Annotated[
        Path | None, typer.Argument(help="Output file; default: tunefleet-debug-<time>.tar.gz in this folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Collect diagnostics into one archive.

    It contains versions, settings, the findings of `tunefleet doctor`, the server's state, queue, workers, newest
    events and metrics, and the last lines of the logs on this machine. Values of keys, tokens and passwords are
    redacted. Missing parts, such as those of a server that does not respond, are listed in missing.txt.
    """
    name = f"tunefleet-debug-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    target = file or Path(f"{name}.tar.gz")
    redactor = Redactor.of_this_machine()
    made = list(parts())
    missing = [part for part in made if part.missing is not None]
    made.append(_missing(missing))
    try:
        _write(target, name, [part for part in made if part.missing is None], redactor)
    except OSError as error:
        raise MachineError(
            f"{target} cannot be written: {error.strerror or error}.", hint="Name another file."
        ) from error
    if as_json:
        print_json({"file": str(target), "missing": {part.name: redactor.text(part.missing or "") for part in missing}})
        return
    say(f"Wrote {target} with {len(made) - len(missing)} files. Review it before you share it.")
    for part in missing:
        say(f"  without {part.name}: {redactor.text(part.missing or '')}", style="warn")


def _missing(parts_: list[Part]) -> Part:
    lines = [f"{part.name}: {part.missing}" for part in parts_] or ["Nothing is missing."]
    return Part("missing.txt", text="\n".join(lines) + "\n")


def _write(target: Path, folder: str, made: list[Part], redactor: Redactor) -> None:
    # Created with its mode: no other user may open it, not even while it is empty.
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE), "wb") as stream:
        # An existing file keeps its mode when it is opened.
        os.fchmod(stream.fileno(), _PRIVATE)
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            for part in made:
                data = redactor.text(redactor.document(part.data) if part.data is not None else part.text).encode()
                entry = tarfile.TarInfo(f"{folder}/{part.name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), _PRIVATE
                archive.addfile(entry, io.BytesIO(data))
