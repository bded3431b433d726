"""Who asks, and whether that role may call a route; the parameter types that routers declare.

A key comes as `Authorization: Bearer`, as `X-API-Key` or, for a browser, as a session cookie. A cookie is sent by the
browser on its own, so an unsafe request with one must also come from a page of this server. On the routes of
federations, whose clients may know nothing but a URL, it comes as HTTP Basic too (`http://:TOKEN@host`). Campaigns act
with tokens of their own, as their owners. What a role may do with one row is the services' business.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import Depends, Path, Request, Response

from tunefleet.errors import AuthError, ForbiddenError
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.access.permissions import Actor, AttemptActor
from tunefleet.orchestrator.campaigns import engine_token as campaign_tokens
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.federation import participants, token_access
from tunefleet.orchestrator.federation.participants import FederationActor

_ATTEMPT_PREFIX: Final = "att-"
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_MEMBERS: Final = ("admin", "member")
_READERS: Final = (*_MEMBERS, "viewer")
NOTED: Final = "who"
"""Where a request's scope says who asks."""
Noted = Actor | AttemptActor | FederationActor
SESSION_SECONDS: Final = 30 * 24 * 3600
"""How long a browser keeps the cookie; the session itself may end sooner."""


def core_of(request: Request) -> Core:
    """Return what the services work on."""
    core: Core = request.app.state.core
    return core


async def _core(request: Request) -> Core:
    # FastAPI calls a plain function in a thread: two hand-overs a request, for an attribute.
    return core_of(request)


CoreDep = Annotated[Core, Depends(_core)]


def noted(request: Request, who: Noted) -> None:
    """Remember who asks, for the audit log."""
    request.scope.setdefault("state", {})[NOTED] = who


async def identify(request: Request) -> Actor | AttemptActor:
    """Find out who asks."""
    secret = _header_secret(request)
    if secret is not None and participants.is_token(secret):
        await token_access.authenticate(core_of(request), secret)
        raise ForbiddenError(
            f"The token of a federation may not call {request.method} {request.url.path}.",
            hint="It is good for the uploads, versions and chunks of its federation.",
        )
    return await _identify(request, secret)


async def identify_participant(request: Request) -> participants.Who:
    """Find out who asks something of a federation: by key, by the federation's token, by either as HTTP Basic."""
    secret = _header_secret(request)
    if secret is None:
        secret = _basic_secret(request)
        if secret is not None and request.method not in _SAFE_METHODS and _from_a_page(request):
            # A browser keeps what stood in a URL, and sends it on its own as it does cookies.
            refuse_foreign_page(request)
    if secret is not None and participants.is_token(secret):
        participant = await token_access.authenticate(core_of(request), secret)
        noted(request, participant)
        return participant
    try:
        who = await _identify(request, secret)
    except AuthError as error:
        if secret is None:
            raise
        hint = "Check it. `tunefleet federation token ID` prints the federation's token to its owner."
        raise AuthError(error.message, hint=hint) from None
    if not isinstance(who, Actor):
        raise ForbiddenError("The token of an attempt is good for its own results and files only.")
    return who


async def _identify(request: Request, secret: str | None) -> Actor | AttemptActor:
    who = await _known(request, secret)
    noted(request, who)
    return who


async def _known(request: Request, secret: str | None) -> Actor | AttemptActor:
    core = core_of(request)
    if secret is not None:
        if secret.startswith(_ATTEMPT_PREFIX):
            return await api_keys.authenticate_attempt(core, secret)
        if campaign_tokens.is_token(secret):
            return await campaign_tokens.authenticate(core, secret)
        return await api_keys.authenticate(core, secret)
    session = request.cookies.get(cookie_name(core))
    if session is None:
        raise AuthError("This request carries no key.", hint="Send one as 'Authorization: Bearer KEY'.")
    actor = await api_keys.authenticate_session(core, session)
    if request.method not in _SAFE_METHODS:
        refuse_foreign_page(request)
    return actor


async def require_known(request: Request) -> None:
    """Refuse who has no key at a route that wants one; for a body that cannot be read, which is found out before."""
    dependant = getattr(request.scope.get("route"), "dependant", None)
    if dependant is None or NOTED in request.scope.get("state", {}):
        return
    # All that routes depend on here asks for a key, but for the core itself.
    asking = {each.call for each in dependant.dependencies if getattr(each.call, "__module__", None) == __name__}
    if asking & {identify_participant, _person}:
        await identify_participant(request)
    elif asking - {_core}:
        await identify(request)


async def identify_if_known(request: Request) -> Actor | AttemptActor | None:
    """Find out who asks, where nobody has to say."""
    try:
        return await identify(request)
    except (AuthError, ForbiddenError):
        return None


def _require(request: Request, who: Actor | AttemptActor, roles: tuple[str, ...]) -> Actor:
    if not isinstance(who, Actor):
        raise ForbiddenError("The token of an attempt is good for its own results and files only.")
    if who.role not in roles:
        raise ForbiddenError(
            f"A {who.role} key may not call {request.method} {request.url.path}.",
            hint=f"It takes a key with the role {' or '.join(roles)}.",
        )
    return who


def _role(*roles: str) -> Callable[[Request], Awaitable[Actor]]:
    async def role(request: Request) -> Actor:
        return _require(request, await identify(request), roles)

    return role


def _role_or_attempt(*roles: str) -> Callable[[Request], Awaitable[Actor | AttemptActor]]:
    async def role_or_attempt(request: Request) -> Actor | AttemptActor:
        who = await identify(request)
        return who if isinstance(who, AttemptActor) else _require(request, who, roles)

    return role_or_attempt


async def reader(request: Request) -> Actor:
    """Return who asks, where a key that may read is wanted.

    Raises:
        AuthError: If there is no key, or a wrong or revoked one.
        ForbiddenError: If the key may not read.
    """
    return _require(request, await identify(request), _READERS)


async def _person(request: Request) -> Actor:
    who = await identify_participant(request)
    if not isinstance(who, Actor):
        raise ForbiddenError("The token of a federation is good for what it has already.", hint="Send your own key.")
    return _require(request, who, _MEMBERS)


async def _any_attempt(request: Request) -> AttemptActor:
    who = await identify(request)
    if not isinstance(who, AttemptActor):
        raise ForbiddenError("Only who holds the job may report for it.", hint="Send the job's token.")
    return who


async def _own_attempt(request: Request, task_id: Annotated[str, Path()]) -> AttemptActor:
    who = await identify(request)
    if not isinstance(who, AttemptActor):
        raise ForbiddenError("Only the worker that runs the task may report for it.", hint="Send the attempt's token.")
    if who.task_id != task_id:
        raise ForbiddenError(f"This attempt's token is good for {who.task_id} only.")
    return who


require_reader = _role(*_READERS)
require_admin = _role("admin")
require_worker = _role("admin", "worker")
Reader = Annotated[Actor, Depends(require_reader)]
Member = Annotated[Actor, Depends(_role(*_MEMBERS))]
Admin = Annotated[Actor, Depends(require_admin)]
WorkerKey = Annotated[Actor, Depends(require_worker)]
OwnAttempt = Annotated[AttemptActor, Depends(_own_attempt)]
AnyAttempt = Annotated[AttemptActor, Depends(_any_attempt)]
"""The token of an attempt, where the body names the task."""
# Who may take part as an agent: a worker's key, or a person's own.
AgentKey = Annotated[Actor, Depends(_role(*_MEMBERS, "worker"))]
# Who may make federations; on the guide's routes the key may come as HTTP Basic.
Person = Annotated[Actor, Depends(_person)]
# Whoever has any key, or the token of a federation; what they may do with one is for the services to say.
Participant = Annotated[Actor | FederationActor, Depends(identify_participant)]


def reader_or_attempt(request: Request, who: Actor | AttemptActor) -> Actor | AttemptActor:
    """Return who asks if they may read, for a route that has another way in too."""
    return who if isinstance(who, AttemptActor) else _require(request, who, _READERS)


ReaderOrAttempt = Annotated[Actor | AttemptActor, Depends(_role_or_attempt(*_READERS))]
MemberOrAttempt = Annotated[Actor | AttemptActor, Depends(_role_or_attempt(*_MEMBERS))]


def cookie_name(core: Core) -> str:
    """Return the name of the session cookie: cookies ignore ports, and a host may have more than one server."""
    return f"tunefleet_{hashlib.sha256(core.secret).hexdigest()[:8]}"


def set_session(response: Response, request: Request, token: str) -> None:
    """Give a browser its session."""
    response.set_cookie(
        cookie_name(core_of(request)),
        token,
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=_secure(request),
    )


def _secure(request: Request) -> bool:
    public = core_of(request).settings.public_base_url or ""
    return request.url.scheme == "https" or public.startswith("https://")


def address_of(request: Request) -> str:
    """Return whence a request comes; behind a proxy on this machine, what that says."""
    return request.client.host if request.client else ""


async def end_session(response: Response, request: Request) -> None:
    """End the session of a browser, if it has one, and take its cookie back."""
    core = core_of(request)
    token = request.cookies.get(cookie_name(core))
    if token is not None:
        await api_keys.close_session(core, token)
        response.delete_cookie(cookie_name(core), httponly=True, samesite="strict", secure=_secure(request))


def refuse_foreign_page(request: Request) -> None:
    """Refuse an unsafe request that a browser did not send from a page of this server."""
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site")
    if origin is None:
        own = site == "same-origin"
    else:
        public = request.app.state.core.settings.public_base_url
        hosts = {request.headers.get("host", "").lower(), urlsplit(public).netloc.lower() if public else ""} - {""}
        own = urlsplit(origin).netloc.lower() in hosts and site in {None, "same-origin"}
    if not own:
        raise ForbiddenError(
            "A browser's session may only be used from a page of this server.", hint="Programs send a key instead."
        )


def _from_a_page(request: Request) -> bool:
    return "origin" in request.headers or "sec-fetch-site" in request.headers


def _basic_secret(request: Request) -> str | None:
    """Return the password of HTTP Basic, or the user name if there is no password."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise AuthError("The Basic credentials cannot be read.", hint="Use the URL http://:TOKEN@HOST.") from None
    return password or user or None


def _header_secret(request: Request) -> str | None:
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return request.headers.get("x-api-key") or request.headers.get("x-workspace-api-key") or None
