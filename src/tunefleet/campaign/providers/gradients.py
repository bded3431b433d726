"""`provider: gradients`: an order is a paid task of api.gradients.io, which supports no idempotency keys.

Our key is in the path of the link to the rows, so that a task of an earlier attempt can be found by the link that
Gradients returns for it. If the link cannot be read, nothing is ordered again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tunefleet.campaign.contract import Candidate, CycleFailed, NeedsYou, Order, Progress, StepFailed
from tunefleet.campaign.providers import gradients_wire as wire
from tunefleet.campaign.providers.gradients_wire import TaskState
from tunefleet.campaign.publish_targets import repo_of
from tunefleet.client import AsyncClient
from tunefleet.client.external.third_party_api import NotArrivedError, Patience, Reply, Service
from tunefleet.errors import AuthError, MachineError, NotFoundError, TunefleetError, UnreachableError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import GRADIENTS

log = logging.getLogger(__name__)

# Each candidate is evaluated on our fleet, which takes time.
MOST_CANDIDATES: Final = 8
_PAGE: Final = 100
_MOST_PAGES: Final = 100
_NAME: Final = "Gradients"
# Keys of orders whose last submission by this process was certainly refused, so that no task exists. Cleared before the
# order is placed again, and by a restart, after which Gradients is queried.
_unplaced: Final[set[str]] = set()
# Unknown statuses that were already logged.
_unknown_statuses: Final[set[str]] = set()


class GradientsProvider:
    """Trains at Gradients; a ticket is the id of a task there."""

    name = GRADIENTS
    paid = True
    fetches_from_store = True

    def __init__(self, service: Service, client: AsyncClient, *, account: str | None = None, settle_s: float) -> None:
        self._service, self._client = service, client
        self._account, self._settle_s = account, settle_s

    async def submit(self, order: Order) -> str:
        """Place an order, once.

        Raises:
            CycleFailed: If Gradients rejects the order permanently.
            StepFailed: If Gradients does not accept it now.
            AuthError: If the key is not valid.
            UnreachableError: If there is no response; the order may have been placed.
        """
        path, body = wire.request_of(order, repo_of(order.base, _NAME))
        _unplaced.discard(order.key)
        try:
            reply = await self._service.post(path, body)
        except NotArrivedError:
            _unplaced.add(order.key)
            raise
        if reply.uncertain:
            raise UnreachableError(f"{_NAME} returned {reply.status}; it is unknown whether the task was created.")
        made = wire.read(wire.NewTask, reply.body) if reply.good else None
        if made is not None and made.success is not False and made.task_id is not None:
            return made.task_id
        if made is not None and made.success is not False:
            raise UnreachableError(f"{_NAME} returned no id; it is unknown whether the task was created.")
        _unplaced.add(order.key)
        if reply.status == 422:
            raise CycleFailed(
                f"{_NAME} rejects the order: {wire.reason_in(reply.body)}.",
                hint="Check the campaign's file.",
            )
        if made is not None:
            raise StepFailed(f"{_NAME} does not accept the order: {wire.reason_in(reply.body)}.")
        raise _refusal(reply)

    async def find(self, order: Order) -> str | None:
        """Return the task that an earlier attempt has created; None only if there certainly is none.

        Raises:
            StepFailed: If this cannot be determined.
            UnreachableError: If Gradients does not respond.
        """
        if order.key in _unplaced:
            return None
        tickets = await self._tickets(order)
        account = await self._account_of(order, tickets)
        # Twice: a task that was just created may appear in the list with a delay.
        for pause_s in (0.0, self._settle_s):
            if pause_s:
                log.info("%s has no order %s; checking again in %g s.", _NAME, order.key, pause_s)
            await asyncio.sleep(pause_s)
            found = await self._listed(account, order, set(tickets))
            if found is not None:
                return found
        return None

    async def look(self, ticket: str) -> Progress:
        """Return the status of a task; an unknown status counts as running."""
        reply = await self._service.get(f"/v1/tasks/{ticket}")
        if reply.status == 404:
            raise await self._missing_task(ticket)
        found = wire.read(TaskState, _checked(reply).body)
        if found.status in wire.FAILURES:
            return Progress("failed", found.status, cost_s=found.took_s)
        if found.status != wire.SUCCESS:
            if found.status not in wire.UNDER_WAY and found.status not in _unknown_statuses:
                _unknown_statuses.add(found.status)
                log.warning("Gradients returned the unknown task status %r; treating it as running.", found.status)
            return Progress("running", found.status or "no status")
        made, count = await self._candidates(ticket, found)
        detail = f"success; {count} submissions" + (f", {len(made)} of them evaluated" if count > len(made) else "")
        return Progress("succeeded", detail, made, cost_s=found.took_s)

    async def cancel(self, ticket: str) -> None:
        """Delete a task that has not ended."""
        reply = await self._service.get(f"/v1/tasks/{ticket}")
        if _says_unknown(reply) or wire.read(TaskState, _checked(reply).body).over:
            return
        reply = await self._service.delete(f"/v1/tasks/delete/{ticket}")
        if not _says_unknown(reply):
            _checked(reply)

    async def close(self) -> None:
        """Close connections."""
        await self._service.close()

    async def _missing_task(self, ticket: str) -> TunefleetError:
        """Return the error for a task that is not found: wrong URL, other account's key, Gradients' error, or gone."""
        reply = await self._service.get(f"/auditing/tasks/{ticket}")
        if reply.status != 404:
            return UnreachableError(f"One API of {_NAME} does not know task {ticket}, and another one does.")
        return NeedsYou(
            f"{_NAME} does not know task {ticket}, or has removed it.",
            hint="First check TUNEFLEET_GRADIENTS_URL, and that GRADIENTS_API_KEY is of the account that ordered it. "
            "The command orders the task again, and you pay for it again.",
            verb="retry --from upload",
        )

    async def _candidates(self, ticket: str, task: TaskState) -> tuple[tuple[Candidate, ...], int]:
        reply = await self._service.get(f"/auditing/tasks/{ticket}")
        given = () if reply.status == 404 else wire.read(wire.Hotkeys, _checked(reply).body).hotkey_details or ()
        numbers = await self._numbers(ticket) if any(each.test_loss is None for each in given) else {}
        found: dict[str, Candidate] = {}
        for each in given:
            if not each.repo or each.repo in found:
                continue
            other = numbers.get(each.hotkey or "", each)
            found[each.repo] = Candidate(
                ref=each.repo,
                form=None,
                name=each.hotkey or each.repo,
                test_loss=_first(each.test_loss, other.test_loss),
                synth_loss=_first(each.synth_loss, other.synth_loss),
                score=_first(each.quality_score, other.quality_score),
            )
        if task.trained_model_repository and task.trained_model_repository not in found:
            repo = task.trained_model_repository
            found[repo] = Candidate(ref=repo, form=None, name=repo)
        ranked = sorted(found.values(), key=_by_reported_loss)
        return tuple(ranked[:MOST_CANDIDATES]), len(ranked)

    async def _numbers(self, ticket: str) -> dict[str, wire.Submission]:
        reply = await self._service.get(f"/v1/tasks/breakdown/{ticket}")
        if reply.status == 404:
            return {}
        results = wire.read(wire.Breakdown, _checked(reply).body).miner_results or ()
        return {each.hotkey: each for each in results if each.hotkey}

    async def _account_of(self, order: Order, tickets: list[str]) -> str:
        if self._account is None:
            for ticket in tickets:
                reply = await self._service.get(f"/v1/tasks/{ticket}")
                if reply.good:
                    self._account = wire.read(TaskState, reply.body).account_id
                    break
        if self._account is None:
            raise NeedsYou(
                f"Order {order.key} may already have been placed at {_NAME}.",
                hint="Set TUNEFLEET_GRADIENTS_ACCOUNT, so that the account's tasks can be searched.",
            )
        return self._account

    async def _tickets(self, order: Order) -> list[str]:
        """Return the known tasks of the same owner's campaigns, this campaign's first."""
        mine, _, _ = order.key.partition("/")
        page = await self._client.campaigns.list()
        ids = sorted((each.id for each in page.items), key=lambda each: each != mine)
        found: list[str] = []
        for id_ in ids:
            try:
                detail = await self._client.campaigns.get(id_)
            except NotFoundError:
                continue
            outcomes = (
                step.outcome for cycle in detail.cycle_list for step in cycle.steps if step.name is StepName.SUBMIT
            )
            found += [str(each["ticket"]) for each in outcomes if each and each.get("provider") == GRADIENTS]
        return found

    async def _listed(self, account: str, order: Order, known: set[str]) -> str | None:
        repo, hidden = repo_of(order.base, _NAME), None
        async for task in self._tasks(account):
            if task.id is None:
                continue
            if leads_to(task.rows, order.data.object_key):
                return task.id
            # A finished task counts too: it may be the order, and was paid for.
            unknown = task.rows is None and task.id not in known and task.base_model_repository in {repo, None}
            if unknown and task.may_be_since(order.since):
                hidden = task.id
        if hidden is not None:
            raise NeedsYou(
                f"{_NAME} does not show the rows of task {hidden}, which may be the order {order.key}.",
                hint="It may show them once that task has ended: run the command then. If the task is not this order, "
                "`tunefleet campaign stop` and `start` abandon this cycle, and the next one orders its chunk.",
            )
        return None

    async def _tasks(self, account: str) -> AsyncIterator[TaskState]:
        before: list[str | None] = []
        for number in range(1, _MOST_PAGES + 1):
            reply = await self._service.get(f"/v1/tasks/account/{account}", {"limit": _PAGE, "page": number})
            if reply.status == 404 and number > 1:
                return
            body: Any = _checked(reply).body
            if not isinstance(body, list):
                raise UnreachableError(f"{_NAME} returned something other than a list of tasks.")
            page = [wire.read(TaskState, each) for each in body]
            ids = [each.id for each in page]
            if ids == before:
                return  # the API ignores `page` and has returned all tasks
            for each in page:
                yield each
            if len(page) < _PAGE:
                return
            before = ids
        raise StepFailed(f"The account at {_NAME} has more than {_PAGE * _MOST_PAGES} tasks, too many to search.")


def make(settings: CampaignSettings, client: AsyncClient) -> GradientsProvider:
    """Return the provider; see `contract.MakeProvider`.

    Raises:
        MachineError: If there is no key.
    """
    if settings.gradients_key is None:
        raise MachineError("Provider gradients requires a key.", hint="Set GRADIENTS_API_KEY, or `provider: local`.")
    patience = Patience(tries=4, longest_s=30.0)
    service = Service(_NAME, settings.gradients_url, settings.gradients_key, timeout_s=120.0, patience=patience)
    return GradientsProvider(service, client, account=settings.gradients_account, settle_s=settings.gradients_settle_s)


def leads_to(link: str | None, object_key: str | None) -> bool:
    """Return whether a link points to an object of our store, regardless of its signature."""
    if not link or not object_key:
        return False
    path = unquote(urlsplit(link).path)
    return path == f"/{object_key}" or path.endswith(f"/{object_key}")


def _says_unknown(reply: Reply) -> bool:
    """Return whether the response means an unknown task; a wrong URL returns 404 too."""
    return reply.status == 404 and "task not found" in wire.reason_in(reply.body).lower()


def _checked(reply: Reply) -> Reply:
    if not reply.good:
        raise _refusal(reply)
    return reply


def _refusal(reply: Reply) -> TunefleetError:
    reason = wire.reason_in(reply.body)
    match reply.status:
        case 401 | 403:
            return AuthError(
                f"{_NAME} rejects the key: {reason}.", hint="Check GRADIENTS_API_KEY and TUNEFLEET_GRADIENTS_URL."
            )
        case 402:
            return NeedsYou(f"{_NAME} requires payment: {reason}.", hint="Add credit to the account.")
        case 429:
            return StepFailed(f"{_NAME} accepts no more orders for now: {reason}.")
        case status:
            return StepFailed(f"{_NAME} returned {status}: {reason}.", hint="Check TUNEFLEET_GRADIENTS_URL.")


def _first(*values: float | None) -> float | None:
    return next((each for each in values if each is not None), None)


def _by_reported_loss(candidate: Candidate) -> tuple[bool, float]:
    """Sort key for which candidates to evaluate if there are too many: by the provider's losses, used only here."""
    loss = candidate.test_loss
    usable = loss is not None and loss > 0
    return not usable, loss if loss is not None and usable else 0.0
