"""The package that a joining machine installs: the server's own version, from the server itself, without a key.

The wheel is built from the files that the server runs from: it has the server's version, and cannot be a package of
the same name that a third party put into a public index.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
import zipfile
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response

import tunefleet
from tunefleet.api.auth import CoreDep
from tunefleet.artifacts import replacing
from tunefleet.errors import NotFoundError

router = APIRouter(include_in_schema=False)
PATH: Final = "/install"
_SKIPPED: Final = frozenset({"__pycache__"})
_METADATA: Final = ("METADATA", "WHEEL", "entry_points.txt")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""Modification time of every entry: the same files build the same wheel."""
_making = threading.Lock()
_made: set[Path] = set()


@router.get(PATH)
async def requirement(core: CoreDep, request: Request) -> Response:
    """Return the requirement for pip: `pip install "$(curl -fsS URL/install)"`."""
    base = (core.settings.public_base_url or str(request.base_url)).rstrip("/")
    return PlainTextResponse(f"tunefleet[train] @ {base}{PATH}/{quote(_name())}\n")


@router.get(PATH + "/{file}")
async def wheel(core: CoreDep, file: str) -> Response:
    """Download the wheel of the server's version."""
    if file != _name():
        raise NotFoundError(
            f"There is no file {file[:100]} at {PATH}.", hint=f"GET {PATH} returns the available package."
        )
    made = await asyncio.to_thread(_kept_wheel, core.settings.data_dir / "install")
    return FileResponse(made, media_type="application/zip", filename=file)


def _name() -> str:
    try:
        return wheel_name()
    except PackageNotFoundError:
        raise NotFoundError(
            "This server runs from a source tree and offers no package.",
            hint="Install Tunefleet from its repository on the new machine.",
        ) from None


def wheel_name() -> str:
    """Return the wheel's file name in the format that pip requires."""
    return f"tunefleet-{_version()}-py3-none-any.whl"


def _kept_wheel(folder: Path) -> Path:
    """Return the wheel; the first call of a process builds it."""
    target = folder / wheel_name()
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
