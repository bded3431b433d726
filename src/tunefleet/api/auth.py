"""Authentication and roles: the dependencies that routers declare.

A key is sent as `Authorization: Bearer`, as `X-API-Key` or, by a browser, as a session cookie. Browsers attach cookies
to every request, so an unsafe request with a cookie must also come from a page of this server. The routes of
federations also accept HTTP Basic (`http://:TOKEN@host`), for clients that can only be configured with a URL. Campaigns
use tokens of their own, with the rights of their owners. Services decide what a role may do with one row.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import Depends, Path, Request, Response

from tunefleet.campaign.service import engine_token as campaign_tokens
from tunefleet.errors import AuthError, ForbiddenError
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.access.permissions import Actor, AttemptActor, FederationActor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import delegated_access, participants

_ATTEMPT_PREFIX: Final = "att-"
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_MEMBERS: Final = ("admin", "member")
_READERS: Final = (*_MEMBERS, "viewer")
NOTED: Final = "who"
"""Key of a request's state that holds the authenticated actor."""
Noted = Actor | AttemptActor | FederationActor
SESSION_SECONDS: Final = 30 * 24 * 3600
"""How long a browser keeps the cookie; the session itself may end sooner."""


def core_of(request: Request) -> ServerContext:
    """Return the context that the services work on."""
    core: ServerContext = request.app.state.core
    return core


async def _core(request: Request) -> ServerContext:
    # Async because FastAPI runs a sync dependency in a thread: two context switches per request for an attribute.
    return core_of(request)


CoreDep = Annotated[ServerContext, Depends(_core)]


def noted(request: Request, who: Noted) -> None:
    """Store the authenticated actor, for the audit log."""
    request.scope.setdefault("state", {})[NOTED] = who


async def identify(request: Request) -> Actor | AttemptActor:
    """Authenticate a request."""
    secret = _header_secret(request)
    if secret is not None and participants.is_token(secret):
        await delegated_access.authenticate_token(core_of(request), secret)
        raise ForbiddenError(
            f"The token of a federation may not call {request.method} {request.url.path}.",
            hint="It is valid only for the uploads, versions and chunks of its federation.",
        )
    return await _identify(request, secret)


async def identify_participant(request: Request) -> participants.FederationCaller:
    """Authenticate a request to a federation: API key or federation token, also as HTTP Basic."""
    secret = _header_secret(request)
    if secret is None:
        secret = _basic_secret(request)
        if secret is not None and request.method not in _SAFE_METHODS and _from_a_page(request):
            # Browsers remember the credentials of a URL and send them automatically, as they do cookies.
            refuse_foreign_page(request)
    if secret is not None and participants.is_token(secret):
        participant = await delegated_access.authenticate_token(core_of(request), secret)
        noted(request, participant)
        return participant
    try:
        who = await _identify(request, secret)
    except AuthError as error:
        if secret is None:
            raise
        hint = "Check the token. The federation's owner can print it with `tunefleet federation token ID`."
        raise AuthError(error.message, hint=hint) from None
    if not isinstance(who, Actor):
        raise ForbiddenError("An attempt token is valid only for the results and files of its own task.")
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
        raise AuthError("No API key provided.", hint="Send one as 'Authorization: Bearer KEY'.")
    actor = await api_keys.authenticate_session(core, session)
    if request.method not in _SAFE_METHODS:
        refuse_foreign_page(request)
    return actor


async def require_known(request: Request) -> None:
    """Require authentication on a route whose request body could not be parsed.

    FastAPI parses the body before it runs dependencies, so without this a caller without a key would get 422, not 401.
    """
    dependant = getattr(request.scope.get("route"), "dependant", None)
    if dependant is None or NOTED in request.scope.get("state", {}):
        return
    # Every dependency defined in this module authenticates, except the core itself.
    asking = {each.call for each in dependant.dependencies if getattr(each.call, "__module__", None) == __name__}
    if asking & {identify_participant, _person}:
        await identify_participant(request)
    elif asking - {_core}:
        await identify(request)


async def identify_if_known(request: Request) -> Actor | AttemptActor | None:
    """Authenticate a request on a route that requires no key; returns `None` without a valid one."""
    try:
        return await identify(request)
    except (AuthError, ForbiddenError):
        return None


def _require(request: Request, who: Actor | AttemptActor, roles: tuple[str, ...]) -> Actor:
    if not isinstance(who, Actor):
        raise ForbiddenError("An attempt token is valid only for the results and files of its own task.")
    if who.role not in roles:
        raise ForbiddenError(
            f"A {who.role} key may not call {request.method} {request.url.path}.",
            hint=f"Use a key with the role {' or '.join(roles)}.",
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
    """Return the actor of a key that may read.

    Raises:
        AuthError: If there is no key, or a wrong or revoked one.
        ForbiddenError: If the key may not read.
    """
    return _require(request, await identify(request), _READERS)


async def _person(request: Request) -> Actor:
    who = await identify_participant(request)
    if not isinstance(who, Actor):
        raise ForbiddenError("A federation token cannot call this route.", hint="Send your own API key.")
    return _require(request, who, _MEMBERS)


async def _any_attempt(request: Request) -> AttemptActor:
    who = await identify(request)
    if not isinstance(who, AttemptActor):
        raise ForbiddenError("Only the agent that runs the job can report for it.", hint="Send the job's token.")
    return who


async def _own_attempt(request: Request, task_id: Annotated[str, Path()]) -> AttemptActor:
    who = await identify(request)
    if not isinstance(who, AttemptActor):
        raise ForbiddenError("Only the worker that runs the task can report for it.", hint="Send the attempt's token.")
    if who.task_id != task_id:
        raise ForbiddenError(f"This attempt token is valid only for task {who.task_id}.")
    return who


require_reader = _role(*_READERS)
require_admin = _role("admin")
require_worker = _role("admin", "worker")
Reader = Annotated[Actor, Depends(require_reader)]
Member = Annotated[Actor, Depends(_role(*_MEMBERS))]
Admin = Annotated[Actor, Depends(require_admin)]
# May send requests to endpoints; services decide to which.
EndpointCaller = Annotated[Actor, Depends(_role(*_MEMBERS, "endpoint"))]
WorkerKey = Annotated[Actor, Depends(require_worker)]
OwnAttempt = Annotated[AttemptActor, Depends(_own_attempt)]
AnyAttempt = Annotated[AttemptActor, Depends(_any_attempt)]
"""The token of an attempt, where the body names the task."""
# Agents authenticate with a worker key or with a person's own key.
AgentKey = Annotated[Actor, Depends(_role(*_MEMBERS, "worker"))]
# May create federations; the key may be sent as HTTP Basic on the upload guide's routes.
Person = Annotated[Actor, Depends(_person)]
# Any API key or federation token; services decide what it may do with one federation.
Participant = Annotated[Actor | FederationActor, Depends(identify_participant)]


def reader_or_attempt(request: Request, who: Actor | AttemptActor) -> Actor | AttemptActor:
    """Return the actor if it may read, for a route that also accepts signed links."""
    return who if isinstance(who, AttemptActor) else _require(request, who, _READERS)


ReaderOrAttempt = Annotated[Actor | AttemptActor, Depends(_role_or_attempt(*_READERS))]
MemberOrAttempt = Annotated[Actor | AttemptActor, Depends(_role_or_attempt(*_MEMBERS))]


def cookie_name(core: ServerContext) -> str:
    """Return the name of the session cookie."""
    # Cookies ignore ports: two servers on one host need two names.
    return f"tunefleet_{hashlib.sha256(core.secret).hexdigest()[:8]}"


def set_session(response: Response, request: Request, token: str) -> None:
    """Set a browser's session cookie."""
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
    """Return the client's address; behind a trusted proxy, the one that the proxy reports."""
    return request.client.host if request.client else ""


async def end_session(response: Response, request: Request) -> None:
    """End a browser's session, if it has one, and delete its cookie."""
    core = core_of(request)
    token = request.cookies.get(cookie_name(core))
    if token is not None:
        await api_keys.close_session(core, token)
        response.delete_cookie(cookie_name(core), httponly=True, samesite="strict", secure=_secure(request))


def refuse_foreign_page(request: Request) -> None:
    """Refuse an unsafe browser request that no page of this server sent."""
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
            "A browser session can only be used from a page of this server.", hint="Send an API key instead."
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
        raise AuthError("The HTTP Basic credentials are malformed.", hint="Use the URL http://:TOKEN@HOST.") from None
    return password or user or None


def _header_secret(request: Request) -> str | None:
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return request.headers.get("x-api-key") or request.headers.get("x-workspace-api-key") or None
