"""`tunefleet debug-dump`: one archive with all that helps to find out what is wrong, and no secret."""

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
from tunefleet.cli.server.dump_redaction import Quiet
from tunefleet.errors import MachineError

_PRIVATE = 0o600


@examples("tunefleet debug-dump", "tunefleet debug-dump /tmp/what-is-wrong.tar.gz")
def debug_dump(
    file: Annotated[
        Path | None, typer.Argument(help="Where it goes; default: tunefleet-debug-<time>.tar.gz in this folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one archive that helps to find what is wrong.

    In it: versions, settings, what `tunefleet doctor` finds, the server's state, its queue, workers, newest events and
    figures, and the last lines of the logs on this machine. Values of keys, tokens and passwords are left out. What
    cannot be had, such as a server that does not answer, is named in missing.txt.
    """
    name = f"tunefleet-debug-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    target = file or Path(f"{name}.tar.gz")
    quiet = Quiet.of_this_machine()
    made = list(parts())
    missing = [part for part in made if part.missing is not None]
    made.append(_missing(missing))
    try:
        _write(target, name, [part for part in made if part.missing is None], quiet)
    except OSError as error:
        raise MachineError(
            f"{target} cannot be written: {error.strerror or error}.", hint="Name another file."
        ) from error
    if as_json:
        print_json({"file": str(target), "missing": {part.name: quiet.text(part.missing or "") for part in missing}})
        return
    say(f"{target} has {len(made) - len(missing)} files. Look through it before you hand it on.")
    for part in missing:
        say(f"  without {part.name}: {quiet.text(part.missing or '')}", style="warn")


def _missing(parts_: list[Part]) -> Part:
    lines = [f"{part.name}: {part.missing}" for part in parts_] or ["Nothing is missing."]
    return Part("missing.txt", text="\n".join(lines) + "\n")


def _write(target: Path, folder: str, made: list[Part], quiet: Quiet) -> None:
    # Nobody else may open it, not even while it is new and empty.
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE), "wb") as stream:
        os.fchmod(stream.fileno(), _PRIVATE)
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            for part in made:
                data = quiet.text(quiet.document(part.data) if part.data is not None else part.text).encode()
                entry = tarfile.TarInfo(f"{folder}/{part.name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), _PRIVATE
                archive.addfile(entry, io.BytesIO(data))
