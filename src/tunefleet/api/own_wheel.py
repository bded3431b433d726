"""The wheel of this server's own version, built from the files that it runs from.

Joining machines install this wheel: it has the server's version, and cannot be a package of the same name that a third
party put into a public index.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import zipfile
from functools import cache
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

import tunefleet
from tunefleet.artifacts import replacing

_SKIPPED: Final = frozenset({"__pycache__"})
_METADATA: Final = ("METADATA", "WHEEL", "entry_points.txt")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""Modification time of every entry: the same files build the same wheel."""
_making = threading.Lock()
_made: set[Path] = set()


def name() -> str:
    """Return the wheel's file name in the format that pip requires."""
    return f"tunefleet-{_version()}-py3-none-any.whl"


def kept(folder: Path) -> Path:
    """Return the wheel; the first call of a process builds it.

    Raises:
        PackageNotFoundError: If the server runs from files that are not installed.
    """
    target = folder / name()
    with _making:
        # A wheel of an earlier process may contain other files: an upgrade can keep the version number.
        if target not in _made or not target.is_file():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make(target)
            _made.add(target)
    return target


def _make(target: Path) -> None:
    package = Path(tunefleet.__file__).parent
    record: list[str] = []
    with replacing(target) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as wheel:
        for file in sorted(package.rglob("*")):
            within = file.relative_to(package)
            if file.is_file() and not any(part in _SKIPPED or part.startswith(".") for part in within.parts):
                _add(wheel, record, f"tunefleet/{within.as_posix()}", file.read_bytes())
        about = f"tunefleet-{_version()}.dist-info"
        for path, text in _described(distribution("tunefleet")).items():
            _add(wheel, record, f"{about}/{path}", text.encode())
        _add(wheel, [], f"{about}/RECORD", "".join([*record, f"{about}/RECORD,,\n"]).encode())


@cache
def _version() -> str:
    return distribution("tunefleet").version


def _described(installed: Distribution) -> dict[str, str]:
    return {path: text for path in _METADATA if (text := installed.read_text(path)) is not None}


def _add(wheel: zipfile.ZipFile, record: list[str], path: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(path, _EPOCH)
    entry.external_attr = 0o644 << 16
    wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    record.append(f"{path},sha256={digest},{len(data)}\n")
