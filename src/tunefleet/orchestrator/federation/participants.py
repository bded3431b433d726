"""Access to a federation: user keys, worker keys, and the federation's own token.

A token contains the federation's id and a MAC. It grants access to the uploads, versions and chunks of that federation
and to nothing else. Once a token was replaced, it also contains a serial number; `delegated_access` knows the valid
one.
"""

from __future__ import annotations

import base64
import hmac
from typing import Final, Protocol, TypeAlias

from pydantic import TypeAdapter, ValidationError

from tunefleet.errors import AuthError, ForbiddenError, InputError, NotFoundError
from tunefleet.orchestrator.access.permissions import Actor, FederationActor, may_change, may_read, may_submit
from tunefleet.orchestrator.ids import sign
from tunefleet.schemas.federated import WorkerName

PREFIX: Final = "fed-"
_MAC_DIGITS: Final = 32
_PEOPLE: Final = frozenset({"admin", "member"})
_NAME: Final[TypeAdapter[str]] = TypeAdapter(WorkerName)


FederationCaller: TypeAlias = Actor | FederationActor


class FederationAccess(Protocol):
    """The fields of a federation that access checks need."""

    @property
    def id(self) -> str:
        """Federation id."""

    @property
    def project(self) -> str:
        """Project that the federation belongs to."""

    @property
    def owner(self) -> str:
        """Owner of the federation."""


def token_of(server_secret: bytes, federation_id: str, serial: int = 0, worker: str | None = None) -> str:
    """Return the token of a federation, signed with the server's secret."""
    named = f"{federation_id}.{serial}" if serial or worker is not None else federation_id
    if worker is not None:
        named += f".{base64.urlsafe_b64encode(worker.encode()).decode().rstrip('=')}"
    return f"{named}.{_mac(server_secret, named)}"


def is_token(secret: str) -> bool:
    """Whether a secret has the form of a federation's token."""
    return secret.startswith(PREFIX) and "." in secret


def proven(server_secret: bytes, token: str) -> tuple[str, int, str | None]:
    """Verify a token's MAC, and return its federation, serial and worker; the token may have been revoked."""
    named, _, mac = token.rpartition(".")
    # Constant time: a plain comparison would leak how many leading characters match.
    if not hmac.compare_digest(mac.encode(), _mac(server_secret, named).encode()):
        raise AuthError("The federation token is not valid.", hint="`tunefleet federation token FEDERATION` prints it.")
    federation_id, serial, worker, *_ = [*named.split("."), "", ""]
    name = base64.urlsafe_b64decode(worker + "=" * (-len(worker) % 4)).decode() if worker else None
    return federation_id, int(serial or 0), name


def worker_name(given: str | int) -> str:
    """Validate the name of a worker; an integer becomes its digits."""
    try:
        return _NAME.validate_python(str(given))
    except ValidationError:
        raise InputError(
            f"{str(given)[:130]!r} is not a valid worker name.",
            hint="Use at most 128 letters, digits, dots, dashes and underscores.",
        ) from None


def may_view(caller: FederationCaller, federation: FederationAccess) -> None:
    """Raise if the caller may not see a federation."""
    _same_project(caller, federation)
    if isinstance(caller, FederationActor):
        _same_federation(caller, federation)
    elif caller.role != "worker":
        may_read(caller)


def may_take_part(caller: FederationCaller, federation: FederationAccess, worker: str | None = None) -> None:
    """Raise unless the caller may upload and claim chunks: with a token, a worker key, or as the owner.

    Args:
        worker: Worker name that the request is made under; None if it names none.
    """
    _same_project(caller, federation)
    if isinstance(caller, FederationActor):
        _same_federation(caller, federation)
        if caller.worker is not None and worker not in (None, caller.worker):
            raise ForbiddenError(
                f"This token is valid for worker {caller.worker} only, not for {worker}.",
                hint=f"`tunefleet federation token {federation.id} --for NAME` creates another one for its owner.",
            )
    elif caller.role in _PEOPLE:
        may_change(caller, federation.owner, federation.id)
    elif caller.role != "worker":
        raise ForbiddenError(
            f"A {caller.role} key cannot take part in a federation.",
            hint=f"`tunefleet federation token {federation.id}` prints the token to its owner.",
        )


def only_worker(caller: FederationCaller) -> str | None:
    """Return the worker that the caller's token is restricted to; None for any other caller."""
    return caller.worker if isinstance(caller, FederationActor) else None


def may_manage(caller: FederationCaller, federation: FederationAccess) -> None:
    """Raise unless the caller may start, pause, roll back or cancel a federation: its owner or an admin."""
    _same_project(caller, federation)
    if isinstance(caller, FederationActor):
        raise ForbiddenError(
            "A federation token is valid for uploads, versions and chunks only.",
            hint=f"Use a key of {federation.owner}, who owns {federation.id}, or of an admin.",
        )
    may_submit(caller)
    may_change(caller, federation.owner, federation.id)


def _same_project(caller: FederationCaller, federation: FederationAccess) -> None:
    if caller.project != federation.project:
        # 404, not 403: a caller must not learn what exists in other projects.
        raise NotFoundError(f"Federation {federation.id} not found.", hint="`tunefleet federation ls` lists them.")


def _same_federation(caller: FederationActor, federation: FederationAccess) -> None:
    if caller.federation_id != federation.id:
        raise ForbiddenError(
            f"This token is valid for {caller.federation_id} only.",
            hint=f"`tunefleet federation token {federation.id}` prints the token of {federation.id} to its owner.",
        )


def _mac(server_secret: bytes, named: str) -> str:
    return sign(server_secret, "federation", named)[:_MAC_DIGITS]
