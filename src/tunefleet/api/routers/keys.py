"""API keys, login codes and browser sessions."""

from __future__ import annotations

from typing import Annotated, Any, Final, get_args

from fastapi import Query, Request, Response

from tunefleet.api.auth import Admin, CoreDep, Reader, address_of, end_session, refuse_foreign_page, set_session
from tunefleet.api.query_params import Cursor, Limit, names, one_of, page
from tunefleet.api.routers import api_router
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.storage import usage_report
from tunefleet.schemas.api import KeyCreate, KeyCreated, KeyView, LoginCode, Page, Role, ServerInfo
from tunefleet.schemas.ui import SessionRequest

router = api_router(tags=["keys"])

_PUBLIC: Final[dict[str, Any]] = {"security": []}
_ROLES: Final = get_args(Role)
Roles = Annotated[str | None, one_of(_ROLES), Query(description=f"Comma-separated: {', '.join(_ROLES)}.")]
Owners = Annotated[str | None, Query(description="Comma-separated owners.", examples=["ada"])]
Revoked = Annotated[bool | None, Query(description="Return only revoked keys, or only keys that are not revoked.")]


@router.get("/keys")
async def list_keys(
    core: CoreDep,
    who: Admin,
    limit: Limit = 100,
    cursor: Cursor = None,
    role: Roles = None,
    owner: Owners = None,
    revoked: Revoked = None,
) -> Page[KeyView]:
    """List keys, without their secrets."""
    roles, owners = names(role), names(owner)
    found = [
        key
        for key in await api_keys.list_(core, who)
        if (roles is None or key.role in roles)
        and (owners is None or key.owner in owners)
        and (revoked is None or (key.revoked_at is not None) is revoked)
    ]
    return page(Page[KeyView], found, limit, cursor)


@router.post("/keys", status_code=201)
async def create_key(core: CoreDep, who: Admin, key: KeyCreate) -> KeyCreated:
    """Create a key. Its secret is shown only once."""
    return await api_keys.create(core, who, key)


@router.delete("/keys/{key_id}", status_code=204)
async def revoke_key(core: CoreDep, who: Admin, key_id: str) -> None:
    """Revoke a key. It stops working immediately."""
    await api_keys.revoke(core, who, key_id)


@router.post("/login-codes", status_code=201)
async def create_login_code(request: Request, core: CoreDep, who: Reader) -> LoginCode:
    """Create a link that logs a browser in. It works once and expires after ten minutes."""
    code = await api_keys.create_login_code(core, who)
    base = (core.settings.public_base_url or str(request.base_url)).rstrip("/")
    # In the fragment, which browsers never send: it appears in no log, and a link preview does not use it up.
    return LoginCode(code=code, url=f"{base}/login#code={code}")


@router.post("/session", status_code=201, openapi_extra=_PUBLIC)
async def open_session(request: Request, response: Response, core: CoreDep, login: SessionRequest) -> ServerInfo:
    """Log a browser in: sets an HTTP-only session cookie. Only for pages of this server."""
    refuse_foreign_page(request)
    token, who = await api_keys.open_session(core, address_of(request), key=login.key, code=login.code)
    set_session(response, request, token)
    return usage_report.info(who)


@router.delete("/session", status_code=204, openapi_extra=_PUBLIC)
async def close_session(request: Request, response: Response) -> None:
    """Log a browser out. The session ends in every window."""
    refuse_foreign_page(request)
    await end_session(response, request)
