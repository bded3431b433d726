"""Access to a federation without a user's key: its token, and signed links to versions and chunks."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from functools import partial
from typing import Final

from tunefleet.db import DEFAULT_PROJECT, Connection, after_commit, wake
from tunefleet.db.federations import federations
from tunefleet.db.federations.federations import FederationRow, TokenRow
from tunefleet.errors import AuthError, ForbiddenError, InputError
from tunefleet.orchestrator.access.permissions import KEYS, FederationActor, KeyCache
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation.participants import FederationCaller, may_manage, proven, token_of, worker_name
from tunefleet.orchestrator.federation.status import find, publish_event, spec_of
from tunefleet.orchestrator.ids import sign
from tunefleet.orchestrator.storage.signed_urls import Signature
from tunefleet.orchestrator.views import to_optional_datetime
from tunefleet.schemas.federated import FederationToken

TRAINING: Final = "/api/training"
_CHUNKS: Final = "/api/datasets/chunks"


def version_path(federation: str | int) -> str:
    """Return the URL path of a version's archive; the version number is a query parameter."""
    return f"{TRAINING}/checkpoints/{federation}/download"


def chunk_path(federation: str | int, number: int) -> str:
    """Return the URL path of a chunk."""
    return f"{_CHUNKS}/{federation}/{number}/download"


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs links with one server's secret, under the base URL that the caller used.

    Args:
        expires: Unix time at which the links expire, in whole seconds.
    """

    secret: bytes
    base: str
    expires: int

    def version(self, federation_id: str, shown: str | int, number: int, digest: str) -> str:
        """Return a link to the archive of a version."""
        subject = _version(federation_id, number)
        return f"{self.base}{version_path(shown)}?version={number}&{self._query(subject, digest)}"

    def chunk(self, federation_id: str, shown: str | int, number: int, digest: str) -> str:
        """Return a link to a chunk; the arguments are those of `version`."""
        return f"{self.base}{chunk_path(shown, number)}?{self._query(_chunk(federation_id, number), digest)}"

    def _query(self, subject: str, digest: str) -> str:
        return f"expires={self.expires}&signature={_mac(self.secret, subject, digest, self.expires)}"


def signer(core: ServerContext, base: str) -> Signer:
    """Return a signer for a caller that reached the server at `base`."""
    expires = int(core.clock.wall() + core.settings.links_last_s)
    return Signer(core.secret, (core.settings.public_base_url or base).rstrip("/"), expires)


def verify_version(core: ServerContext, federation_id: str, number: int, digest: str, signature: Signature) -> None:
    """Check a link to a version."""
    hint = f"GET {TRAINING}/checkpoints/{federation_id} has a fresh one."
    _verify(core, _version(federation_id, number), digest, signature, hint)


def verify_chunk(core: ServerContext, federation_id: str, number: int, digest: str, signature: Signature) -> None:
    """Check a link to a chunk."""
    hint = f"POST {TRAINING}/jobs/{federation_id}/claim-chunk has a fresh one."
    _verify(core, _chunk(federation_id, number), digest, signature, hint)


def _verify(core: ServerContext, subject: str, digest: str, signature: Signature, hint: str) -> None:
    expected = _mac(core.secret, subject, digest, signature.expires)
    if not hmac.compare_digest(expected.encode(), signature.signature.encode()):
        raise ForbiddenError("This link was not signed by this server, or its target has changed.", hint=hint)
    if signature.expires < core.clock.wall():  # after the signature: only genuine links learn that they expired
        raise ForbiddenError("This link has expired.", hint=hint)


def _version(federation_id: str, number: int) -> str:
    return f"{federation_id}/versions/{number}"


def _chunk(federation_id: str, number: int) -> str:
    return f"{federation_id}/chunks/{number}"


def _mac(secret: bytes, subject: str, digest: str, expires: int) -> str:
    return sign(secret, "federation link", subject, digest, str(expires))


async def authenticate_token(core: ServerContext, token: str) -> FederationActor:
    """Authenticate a federation token.

    Raises:
        AuthError: If this server did not create the token, or it was revoked.
    """
    federation_id, serial, worker = proven(core.secret, token)
    cache = core.state(KeyCache)
    known = cache.federations
    row = known.get(federation_id)
    if row is None:
        found, cache.projects[federation_id] = await core.read(partial(_look_up, federation_id=federation_id))
        row = known[federation_id] = found
    in_grace_period = row.old_until is not None and core.clock.wall() < row.old_until and serial == row.serial - 1
    if serial != row.serial and not in_grace_period:
        raise AuthError(
            f"This token of {federation_id} was revoked.",
            hint=f"`tunefleet federation token {federation_id}` prints the new one to its owner.",
        )
    return FederationActor(federation_id, cache.projects.get(federation_id, DEFAULT_PROJECT), worker)


def _look_up(connection: Connection, *, federation_id: str) -> tuple[TokenRow, str]:
    federation = federations.find(connection, None, federation_id)
    project = DEFAULT_PROJECT if federation is None else federation.project
    return federations.token(connection, federation_id), project


def current_token(connection: Connection, server_secret: bytes, federation_id: str) -> str:
    """Return the current token of a federation."""
    return token_of(server_secret, federation_id, federations.token(connection, federation_id).serial)


async def show_token(
    core: ServerContext, caller: FederationCaller, reference: str, worker: str | None = None
) -> FederationToken:
    """Return the token of a federation, for its owner or an admin.

    Raises:
        ForbiddenError: If the federation belongs to another user.
        InputError: If the worker name is not valid, or is not a participant.
    """
    name = None if worker is None else worker_name(worker)

    def operation(connection: Connection) -> FederationToken:
        row = find(connection, caller, reference)
        may_manage(caller, row)
        named = spec_of(row).participants
        if name is not None and named is not None and name not in named:
            raise InputError(
                f"{name} is not a participant of {row.id} ({', '.join(sorted(named)[:20])}).",
                hint=f"`tunefleet federation token {row.id} --for {min(named)}` creates the token of one of them.",
            )
        return _shown(core, row, federations.token(connection, row.id), name)

    return await core.read(operation)


async def replace_token(
    core: ServerContext, caller: FederationCaller, reference: str, *, old_for_s: float = 0.0
) -> FederationToken:
    """Replace the token of a federation, and return the new one.

    Signed links stay valid until they expire, and a poll in progress is not interrupted.

    Raises:
        ForbiddenError: If the federation belongs to another user.
    """
    return await core.write(partial(_replace, core=core, caller=caller, reference=reference, old_for_s=old_for_s))


def _replace(
    connection: Connection, *, core: ServerContext, caller: FederationCaller, reference: str, old_for_s: float
) -> FederationToken:
    row, now = find(connection, caller, reference, lock=True), core.clock.wall()
    may_manage(caller, row)
    replaced = federations.replace_token(connection, row.id, old_until=now + old_for_s if old_for_s else None)
    # After the commit: a request that runs meanwhile would cache the old serial again. The topic clears other servers'
    # caches.
    after_commit(connection, core.state(KeyCache).forget)
    wake(connection, KEYS)
    publish_event(connection, row, "federation.token_replaced", now, old_until=replaced.old_until)
    return _shown(core, row, replaced)


def _shown(core: ServerContext, row: FederationRow, token_row: TokenRow, worker: str | None = None) -> FederationToken:
    over = token_row.old_until is None or token_row.old_until <= core.clock.wall()
    return FederationToken(
        id=row.id,
        number=row.seq,
        token=token_of(core.secret, row.id, token_row.serial, worker),
        worker=worker,
        old_until=None if over else to_optional_datetime(token_row.old_until),
    )
