"""The audit log: actor, request, address and status. Written before the response is sent."""

from __future__ import annotations

from tunefleet.db.access import audit
from tunefleet.db.access.audit import AuditRow
from tunefleet.orchestrator.access.permissions import Actor, AttemptActor, FederationActor, is_operator, may_administer
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.views import before_cursor, bounded_limit, split_page, to_datetime
from tunefleet.schemas.api import Page
from tunefleet.schemas.projects import AuditEntry

AnyCaller = Actor | AttemptActor | FederationActor | None


async def write(core: ServerContext, caller: AnyCaller, request: AuditRow) -> None:
    """Record a request, except those of attempts and federation workers, whose reports are rows of their own.

    Args:
        caller: The authenticated caller; None if there is none.
    """
    if isinstance(caller, AttemptActor | FederationActor):
        return
    row = request
    if caller is not None:
        row = row._replace(key_id=caller.key_id, actor=caller.owner, role=caller.role, project=caller.project)
    await core.write(lambda connection: audit.add(connection, [row]))


async def list_(
    core: ServerContext,
    actor: Actor,
    *,
    limit: int = 100,
    cursor: str | None = None,
    owner: str | None = None,
    route: str | None = None,
    since: float | None = None,
) -> Page[AuditEntry]:
    """Return entries, newest first: those of the actor's project, or of all projects for an operator.

    Raises:
        ForbiddenError: If the actor is not an admin.
    """
    may_administer(actor)
    limit, last = bounded_limit(limit), before_cursor(cursor)
    whose = None if is_operator(actor) else actor.project
    rows = await core.read(
        lambda connection: audit.page(
            connection, project=whose, actor=owner, route=route, since=since, before=last, limit=limit + 1
        )
    )
    shown, next_cursor = split_page(rows, limit)
    return Page[AuditEntry](items=tuple(_entry(row) for row in shown), next_cursor=next_cursor)


def _entry(row: AuditRow) -> AuditEntry:
    values = {**row._asdict(), "id": row.seq, "at": to_datetime(row.at), "target": row.target or ""}
    return AuditEntry.model_validate(values)
