"""An archive that a spec names as a dataset, model or checkpoint stands for the folder in it."""

from __future__ import annotations

from pathlib import Path

from tunefleet import artifacts


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
    top = list(target.iterdir())
    return top[0] if len(top) == 1 and top[0].is_dir() else target
