"""API keys and login codes."""

from __future__ import annotations

from fastapi import APIRouter, Request

from tunefleet.server.auth import Admin, CoreDep, Reader
from tunefleet.server.params import Cursor, Limit, page
from tunefleet.services import keys
from tunefleet.wire.api import KeyCreate, KeyCreated, KeyView, LoginCode, Page

router = APIRouter(tags=["keys"])


@router.get("/keys")
async def list_keys(core: CoreDep, who: Admin, limit: Limit = 100, cursor: Cursor = None) -> Page[KeyView]:
    """List keys, without their secrets."""
    return page(Page[KeyView], await keys.list_(core, who), limit, cursor)


@router.post("/keys", status_code=201)
async def create_key(core: CoreDep, who: Admin, key: KeyCreate) -> KeyCreated:
    """Create a key; its secret is shown this once."""
    return await keys.create(core, who, key)


@router.delete("/keys/{key_id}", status_code=204)
async def revoke_key(core: CoreDep, who: Admin, key_id: str) -> None:
    """Revoke a key; it stops to work at once."""
    await keys.revoke(core, who, key_id)


@router.post("/login-codes", status_code=201)
async def create_login_code(request: Request, core: CoreDep, who: Reader) -> LoginCode:
    """Create a link that logs a browser in, usable once and for ten minutes."""
    code = await keys.create_login_code(core, who)
    base = (core.settings.public_base_url or str(request.base_url)).rstrip("/")
    return LoginCode(code=code, url=f"{base}/login?code={code}")
