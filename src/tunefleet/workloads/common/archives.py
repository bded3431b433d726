"""An archive that a spec names as a dataset, model or checkpoint stands for the folder in it."""

from __future__ import annotations

from pathlib import Path

from tunefleet import artifacts


def inner(folder: Path) -> Path:
    """Return the only folder in a folder, as archives have one; what is no folder, or holds more, itself."""
    if not folder.is_dir():
        return folder
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return entries[0] if [entry.is_dir() for entry in entries] == [True] else folder


def opened(path: Path, workspace: Path) -> Path:
    """Return the file or folder that a path means; an archive is unpacked once and found again by later launches.

    Args:
        path: A file, folder or archive.
        workspace: Where archives are unpacked.

    Raises:
        ArtifactError: If the archive is broken or has an unsafe member.
    """
    if not (path.is_file() and artifacts.is_archive(path)):
        return path
    target = workspace / f"{path.name}.unpacked"
    if not target.is_dir():
        return artifacts.unpack(path, target)
    return inner(target)
