"""The package that a joining machine installs: the server's own version, from the server itself, without a key."""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response

from tunefleet.api import own_wheel
from tunefleet.api.auth import CoreDep
from tunefleet.errors import NotFoundError

router = APIRouter(include_in_schema=False)

PATH: Final = "/install"


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
    made = await asyncio.to_thread(own_wheel.kept, core.settings.data_dir / "install")
    return FileResponse(made, media_type="application/zip", filename=file)


def _name() -> str:
    try:
        return own_wheel.name()
    except PackageNotFoundError:
        raise NotFoundError(
            "This server runs from a source tree and offers no package.",
            hint="Install Tunefleet from its repository on the new machine.",
        ) from None
