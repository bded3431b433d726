"""Who takes part in a federation: people with a key, workers with theirs, and whoever has the federation's own token.

The token names its federation and proves that this server named it. It reaches that one federation: uploads, versions
and chunks of it, and nothing else of the server. Of a federation whose token was replaced it also says which one it is;
`access` knows which is good.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from pydantic import TypeAdapter, ValidationError

from tunefleet.db import DEFAULT_PROJECT
from tunefleet.errors import AuthError, ForbiddenError, InputError, NotFoundError
from tunefleet.orchestrator.access.permissions import Actor, may_change, may_read, may_submit
from tunefleet.orchestrator.ids import seal
from tunefleet.schemas.federated import WorkerName

PREFIX: Final = "fed-"
_MAC_DIGITS: Final = 32
_PEOPLE: Final = frozenset({"admin", "member"})
_NAME: Final[TypeAdapter[str]] = TypeAdapter(WorkerName)


@dataclass(frozen=True, slots=True)
class FederationActor:
    """Whoever has the token of a federation.

    Args:
        worker: The only name that it is good for; null for the token that all workers may have.
    """

    federation_id: str
    project: str = DEFAULT_PROJECT
    worker: str | None = None


Who: TypeAlias = Actor | FederationActor


class Owned(Protocol):
    """A federation, as far as it says who may do what with it."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def project(self) -> str:
        """Where it is."""

    @property
    def owner(self) -> str:
        """Whose it is."""


def token_of(server_secret: bytes, federation_id: str, serial: int = 0, worker: str | None = None) -> str:
    """Return the token that names a federation and proves that the server named it."""
    named = f"{federation_id}.{serial}" if serial or worker is not None else federation_id
    if worker is not None:
        named += f".{base64.urlsafe_b64encode(worker.encode()).decode().rstrip('=')}"
    return f"{named}.{_mac(server_secret, named)}"


def is_token(secret: str) -> bool:
    """Whether a secret has the form of a federation's token."""
    return secret.startswith(PREFIX) and "." in secret


def proven(server_secret: bytes, token: str) -> tuple[str, int, str | None]:
    """Return the federation, the serial and the worker that a token names; if it is good still is not known yet."""
    named, _, mac = token.rpartition(".")
    if not hmac.compare_digest(mac.encode(), _mac(server_secret, named).encode()):
        raise AuthError(
            "The token of the federation is wrong.", hint="`tunefleet federation token FEDERATION` prints it."
        )
    federation_id, serial, worker, *_ = [*named.split("."), "", ""]
    name = base64.urlsafe_b64decode(worker + "=" * (-len(worker) % 4)).decode() if worker else None
    return federation_id, int(serial or 0), name


def worker_name(given: str | int) -> str:
    """Return how a worker is known: a whole number by its digits."""
    try:
        return _NAME.validate_python(str(given))
    except ValidationError:
        raise InputError(
            f"{str(given)[:130]!r} is not the name of a worker.",
            hint="Use letters, digits, dots, dashes and underlines; at most 128 of them.",
        ) from None


def may_look(who: Who, federation: Owned) -> None:
    """Refuse who may not see a federation."""
    _same_project(who, federation)
    if isinstance(who, FederationActor):
        _same_federation(who, federation)
    elif who.role != "worker":
        may_read(who)


def may_take_part(who: Who, federation: Owned, worker: str | None = None) -> None:
    """Refuse who may not upload to a federation, or take its chunks: it takes its token, a worker's key, or its owner.

    Args:
        worker: Under which name; null if it is done under none.
    """
    _same_project(who, federation)
    if isinstance(who, FederationActor):
        _same_federation(who, federation)
        if who.worker is not None and worker not in (None, who.worker):
            raise ForbiddenError(
                f"This token is good for the worker {who.worker} only, and not for {worker}.",
                hint=f"`tunefleet federation token {federation.id} --for NAME` makes another, for its owner.",
            )
    elif who.role in _PEOPLE:
        may_change(who, federation.owner, federation.id)
    elif who.role != "worker":
        raise ForbiddenError(
            f"A {who.role} key cannot take part in a federation.",
            hint=f"`tunefleet federation token {federation.id}` prints the token to its owner.",
        )


def only_worker(who: Who) -> str | None:
    """Return the name of the worker whose own token this is; null for anyone else."""
    return who.worker if isinstance(who, FederationActor) else None


def may_steer(who: Who, federation: Owned) -> None:
    """Refuse who may not start, pause, roll back or cancel a federation: it takes its owner or an admin."""
    _same_project(who, federation)
    if isinstance(who, FederationActor):
        raise ForbiddenError(
            "The token of a federation is good for its uploads, versions and chunks only.",
            hint=f"Use a key of {federation.owner}, who owns {federation.id}, or of an admin.",
        )
    may_submit(who)
    may_change(who, federation.owner, federation.id)


def _same_project(who: Who, federation: Owned) -> None:
    if who.project != federation.project:
        raise NotFoundError(f"There is no federation {federation.id}.", hint="`tunefleet federation ls` lists them.")


def _same_federation(who: FederationActor, federation: Owned) -> None:
    if who.federation_id != federation.id:
        raise ForbiddenError(
            f"This token is good for {who.federation_id} only.",
            hint=f"`tunefleet federation token {federation.id}` prints the token of {federation.id} to its owner.",
        )


def _mac(server_secret: bytes, named: str) -> str:
    return seal(server_secret, "federation", named)[:_MAC_DIGITS]
