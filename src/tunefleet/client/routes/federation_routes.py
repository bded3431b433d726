"""The routes of federations as calls, for the users who create and control them.

Workers use `client.federation`, which needs only a federation's address and token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import RootModel

from tunefleet.client.call import Call, model, nothing, path
from tunefleet.schemas.api import Page
from tunefleet.schemas.federated import (
    FederationCreated,
    FederationDetail,
    FederationToken,
    FederationView,
    MemberChange,
    MemberView,
    RollbackRequest,
    RoundView,
    TokenReplace,
    UpdateView,
    VersionDetail,
    VersionView,
)

if TYPE_CHECKING:
    from tunefleet.spec.options.federation_options import FederationSpec

# Response time in addition to a long poll.
_LONGEST_S = 15.0


class _Raw(RootModel[dict[str, Any]]):
    """A body sent as it is: omitted fields stay unchanged, which a model with defaults cannot express."""


def create_federation(spec: FederationSpec, *, start: bool = True) -> Call[FederationCreated]:
    """Create a federation; the response contains its token and the secret that signs callbacks.

    Args:
        spec: Strategy, quorum and the rest.
        start: Whether it accepts updates immediately.
    """
    body = spec.model_dump(mode="json", exclude_unset=True)
    # Serialization of a spec always omits the secret.
    if spec.callback_secret is not None:
        body["callback_secret"] = spec.callback_secret
    params = {"start": "true" if start else "false"}
    return Call("POST", "/federations", model(FederationCreated), params, body=_Raw(body), repeatable=False)


def list_federations(
    *, status: str | None = None, owner: str | None = None, limit: int = 100, cursor: str | None = None
) -> Call[Page[FederationView]]:
    """Return a page of federations, newest first."""
    params = {"status": status, "owner": owner, "limit": limit, "cursor": cursor}
    return Call("GET", "/federations", model(Page[FederationView]), params)


def get_federation(federation: str) -> Call[FederationDetail]:
    """Return a federation with its members and latest rounds, by id or number."""
    return Call("GET", path("federations", federation), model(FederationDetail))


def start_federation(federation: str) -> Call[FederationDetail]:
    """Start a federation, or resume a paused one."""
    return Call("POST", path("federations", federation, "start"), model(FederationDetail))


def pause_federation(federation: str) -> Call[FederationDetail]:
    """Pause a federation: updates are still accepted, but no round is closed until you resume it."""
    return Call("POST", path("federations", federation, "pause"), model(FederationDetail))


def cancel_federation(federation: str) -> Call[FederationDetail]:
    """Cancel a federation permanently; its versions are kept."""
    return Call("POST", path("federations", federation, "cancel"), model(FederationDetail))


def remove_federation(federation: str) -> Call[None]:
    """Delete a federation that has ended, including its versions."""
    return Call("DELETE", path("federations", federation), nothing, repeatable=False)


def federation_token(federation: str, *, worker: str | None = None) -> Call[FederationToken]:
    """Return the workers' token, which is valid only for this federation.

    Args:
        federation: Id or number of the federation.
        worker: Return a token that is valid only for this worker name.
    """
    where = path("federations", federation, "token")
    return Call("GET", where, model(FederationToken), params={"worker": worker})


def replace_federation_token(federation: str, *, old_for_s: float = 0.0) -> Call[FederationToken]:
    """Revoke the token and return its replacement.

    Args:
        federation: Id or number of the federation.
        old_for_s: How long the old token stays valid, for workers that use it.
    """
    body = TokenReplace(old_for_s=old_for_s)
    return Call("POST", path("federations", federation, "token"), model(FederationToken), body=body, repeatable=False)


def list_updates(
    federation: str,
    *,
    round: int | None = None,
    worker: str | None = None,
    state: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Call[Page[UpdateView]]:
    """Return a page of a federation's updates, newest first."""
    params = {"round": round, "worker": worker, "state": state, "limit": limit, "cursor": cursor}
    return Call("GET", path("federations", federation, "updates"), model(Page[UpdateView]), params)


def list_rounds(federation: str, *, limit: int = 100, cursor: str | None = None) -> Call[Page[RoundView]]:
    """Return a page of a federation's rounds, newest first."""
    params = {"limit": limit, "cursor": cursor}
    return Call("GET", path("federations", federation, "rounds"), model(Page[RoundView]), params)


def list_versions(federation: str, *, limit: int = 100, cursor: str | None = None) -> Call[Page[VersionView]]:
    """Return a page of a federation's adapter versions, newest first."""
    params = {"limit": limit, "cursor": cursor}
    return Call("GET", path("federations", federation, "versions"), model(Page[VersionView]), params)


def get_version(federation: str, version: int) -> Call[VersionDetail]:
    """Return a version with its contributions, its rejected updates and the strategy's report."""
    return Call("GET", path("federations", federation, "versions", str(version)), model(VersionDetail))


def newest_version(federation: str, *, after: int = 0, wait_s: float = 0.0) -> Call[VersionView | None]:
    """Return the newest version if it is newer than `after`; waits up to `wait_s` seconds for one."""
    where = path("federations", federation, "versions", "newest")
    params = {"after": after, "wait_s": wait_s}
    return Call("GET", where, _maybe_version, params, read_timeout_s=wait_s + _LONGEST_S)


def roll_back(federation: str, version: int) -> Call[VersionView]:
    """Publish an earlier version again, as the newest one with a new number."""
    body = RollbackRequest(version=version)
    where = path("federations", federation, "rollback")
    return Call("POST", where, model(VersionView), body=body, repeatable=False)


def change_member(federation: str, worker: str, changes: Mapping[str, Any]) -> Call[MemberView]:
    """Change a worker's settings in a federation, such as its `callback_url`."""
    body = _Raw(MemberChange.model_validate(dict(changes)).model_dump(mode="json", exclude_unset=True))
    return Call("PUT", path("federations", federation, "members", worker), model(MemberView), body=body)


def _maybe_version(body: bytes) -> VersionView | None:
    return model(VersionView)(body) if body else None
