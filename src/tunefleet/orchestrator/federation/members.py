"""Workers of a federation and their webhook addresses."""

from __future__ import annotations

from functools import partial

from tunefleet.db import Connection, wake
from tunefleet.db.federations import federation_updates, federations
from tunefleet.db.federations.federations import MemberRow
from tunefleet.db.repositories import notifications
from tunefleet.errors import InputError
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import views
from tunefleet.orchestrator.federation.participants import FederationCaller
from tunefleet.orchestrator.federation.status import find, find_to_take_part
from tunefleet.orchestrator.federation.updates import acceptance
from tunefleet.orchestrator.notifications import federation_webhooks
from tunefleet.orchestrator.notifications.triggers import TOPIC
from tunefleet.schemas.federated import MemberChange, MemberView
from tunefleet.spec.options.notify import address_fault


async def list_(core: ServerContext, caller: FederationCaller, reference: str) -> tuple[MemberView, ...]:
    """Return the workers that have joined a federation, by name."""

    def operation(connection: Connection) -> tuple[MemberView, ...]:
        row = find(connection, caller, reference)
        return views.member_views(connection, row, caller)

    return await core.read(operation)


async def change(
    core: ServerContext, caller: FederationCaller, reference: str, worker: str, body: MemberChange
) -> MemberView:
    """Let a worker join, or change its webhook; pending deliveries go to the new address.

    Raises:
        ForbiddenError: If the caller has no access, or the worker may not take part.
        GoneError: If the federation has ended, or a later attempt of the worker takes part.
        InputError: If the address cannot be used.
    """
    fault = None if body.callback_url is None else address_fault(body.callback_url, "webhook")
    if fault is not None:
        raise InputError(f"The callback_url {fault}.")
    return await core.write(partial(_change, core=core, caller=caller, reference=reference, worker=worker, body=body))


def _change(
    connection: Connection,
    *,
    core: ServerContext,
    caller: FederationCaller,
    reference: str,
    worker: str,
    body: MemberChange,
) -> MemberView:
    row, now = find_to_take_part(connection, caller, reference, worker, lock=True), core.clock.wall()
    # A worker that could not upload may not join either.
    acceptance.refuse_upload(connection, row, worker, body.attempt)
    member = federations.member(connection, row.seq, worker)
    if member is None:
        member = MemberRow(row.seq, worker, None, 0, 0, None, None, None, None, now, now)
    member = member._replace(seen_at=now, attempt=body.attempt if body.attempt is not None else member.attempt)
    if "callback_url" in body.model_fields_set:
        member = member._replace(callback_url=body.callback_url)
        lane = federation_webhooks.lane(row.id, worker)
        if body.callback_url is None:
            notifications.give_up_channel(connection, lane, "The worker removed its callback URL.")
        else:
            notifications.readdress(connection, lane, target=body.callback_url, format_="webhook", now=now)
        wake(connection, TOPIC)
    federations.put_member(connection, member)
    counted = None if body.attempt is None else federation_updates.rows_taken(connection, row.seq, worker)
    return views.member_view(member, counted)
