"""`provider: gradients`: an order is a task of api.gradients.io, which costs money and knows no idempotency key.

Our key is in the path of the link to the rows. So a task that an earlier try has made is found by the link that
Gradients says it has; where that cannot be read, nothing is ordered again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tunefleet.campaign.contract import Candidate, CycleFailed, NeedsYou, Order, Progress, StepFailed
from tunefleet.campaign.hub_models import repo_of
from tunefleet.campaign.providers import gradients_wire as wire
from tunefleet.campaign.providers.gradients_wire import TaskState
from tunefleet.client import AsyncClient
from tunefleet.client.external.third_party_api import NotArrivedError, Patience, Reply, Service
from tunefleet.errors import AuthError, MachineError, NotFoundError, TunefleetError, UnreachableError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import GRADIENTS

log = logging.getLogger(__name__)

# Each is measured on our fleet, which takes its time.
MOST_CANDIDATES: Final = 8
_PAGE: Final = 100
_MOST_PAGES: Final = 100
_NAME: Final = "Gradients"
# Keys of orders that were surely refused when they were placed last by this process: nothing was made of them. It is
# forgotten before the order is placed again, and by a restart, after which Gradients is asked.
_unplaced: Final[set[str]] = set()
# Statuses that were said to be unknown.
_strange: Final[set[str]] = set()


class GradientsProvider:
    """Trains at Gradients; a ticket is a task's id there."""

    name = GRADIENTS
    paid = True
    fetches_from_store = True

    def __init__(self, service: Service, client: AsyncClient, *, account: str | None = None, settle_s: float) -> None:
        self._service, self._client = service, client
        self._account, self._settle_s = account, settle_s

    async def submit(self, order: Order) -> str:
        """Place an order, once.

        Raises:
            CycleFailed: If Gradients will never take it.
            StepFailed: If it does not take it now.
            AuthError: If the key is wrong.
            UnreachableError: If there is no answer; then it may have been placed.
        """
        path, said = wire.request_of(order, repo_of(order.base, _NAME))
        _unplaced.discard(order.key)
        try:
            reply = await self._service.post(path, said)
        except NotArrivedError:
            _unplaced.add(order.key)
            raise
        if reply.uncertain:
            raise UnreachableError(f"{_NAME} answers {reply.status}; whether it has made the task is not known.")
        made = wire.read(wire.NewTask, reply.body) if reply.good else None
        if made is not None and made.success is not False and made.task_id is not None:
            return made.task_id
        if made is not None and made.success is not False:
            raise UnreachableError(f"{_NAME} answers without an id; whether it has made the task is not known.")
        _unplaced.add(order.key)
        if reply.status == 422:
            raise CycleFailed(
                f"{_NAME} does not understand the order: {wire.words_of(reply.body)}.",
                hint="Check the campaign's file.",
            )
        if made is not None:
            raise StepFailed(f"{_NAME} does not take the order: {wire.words_of(reply.body)}.")
        raise _refusal(reply)

    async def find(self, order: Order) -> str | None:
        """Return the task that an earlier try has made; null only if there surely is none.

        Raises:
            StepFailed: If that cannot be told.
            UnreachableError: If Gradients does not answer.
        """
        if order.key in _unplaced:
            return None
        tickets = await self._tickets(order)
        account = await self._account_of(order, tickets)
        for pause_s in (0.0, self._settle_s):
            if pause_s:
                log.info("%s has no order %s; it is asked again in %g s.", _NAME, order.key, pause_s)
            await asyncio.sleep(pause_s)
            found = await self._listed(account, order, set(tickets))
            if found is not None:
                return found
        return None

    async def look(self, ticket: str) -> Progress:
        """Return where a task stands; a status that is not known counts as one that goes on."""
        reply = await self._service.get(f"/v1/tasks/{ticket}")
        if reply.status == 404:
            raise await self._vanished(ticket)
        found = wire.read(TaskState, _checked(reply).body)
        if found.status in wire.FAILURES:
            return Progress("failed", found.status, cost_s=found.took_s)
        if found.status != wire.SUCCESS:
            if found.status not in wire.UNDER_WAY and found.status not in _strange:
                _strange.add(found.status)
                log.warning("Gradients calls a task %r, which is not known; it is taken to go on.", found.status)
            return Progress("running", found.status or "no status")
        made, count = await self._made(ticket, found)
        detail = f"success; {count} submissions" + (f", {len(made)} are measured" if count > len(made) else "")
        return Progress("succeeded", detail, made, cost_s=found.took_s)

    async def cancel(self, ticket: str) -> None:
        """Delete a task that goes on."""
        reply = await self._service.get(f"/v1/tasks/{ticket}")
        if _says_unknown(reply) or wire.read(TaskState, _checked(reply).body).over:
            return
        reply = await self._service.delete(f"/v1/tasks/delete/{ticket}")
        if not _says_unknown(reply):
            _checked(reply)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._service.close()

    async def _vanished(self, ticket: str) -> TunefleetError:
        """Return why a task is not shown: a wrong address, another account's key, a fault there; or it is gone."""
        reply = await self._service.get(f"/auditing/tasks/{ticket}")
        if reply.status != 404:
            return UnreachableError(f"One part of {_NAME} does not know the task {ticket}, and another does.")
        return NeedsYou(
            f"{_NAME} does not know the task {ticket} (any more).",
            hint="Check first GRADIENTS_API_URL, and that GRADIENTS_API_KEY is of the account that ordered it. Nothing "
            "is ordered in its place until you type that: it orders again, and is paid for again.",
            verb="retry --from upload",
        )

    async def _made(self, ticket: str, task: TaskState) -> tuple[tuple[Candidate, ...], int]:
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
        ranked = sorted(found.values(), key=_promise)
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
                f"It is not known whether the order {order.key} was placed at {_NAME} before.",
                hint="Set GRADIENTS_ACCOUNT_ID first: then its tasks are looked through.",
            )
        return self._account

    async def _tickets(self, order: Order) -> list[str]:
        """Return the tasks that campaigns of the same owner are known to have, this campaign's first."""
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
            # One that has ended may be the order, too: it was paid for.
            unknown = task.rows is None and task.id not in known and task.base_model_repository in {repo, None}
            if unknown and task.may_be_since(order.since):
                hidden = task.id
        if hidden is not None:
            raise NeedsYou(
                f"{_NAME} does not say which rows the task {hidden} is trained on, which may be the order {order.key}.",
                hint="It may say so once that task has ended: type that then; nothing is ordered until it says so. If "
                "the task is another's, `tunefleet campaign stop` and `start` give this cycle up, and the next one "
                "orders its chunk.",
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
                raise UnreachableError(f"{_NAME} answers with what is no list of tasks.")
            page = [wire.read(TaskState, each) for each in body]
            ids = [each.id for each in page]
            if ids == before:
                return  # it knows no pages, and has said all
            for each in page:
                yield each
            if len(page) < _PAGE:
                return
            before = ids
        raise StepFailed(f"The account at {_NAME} has more than {_PAGE * _MOST_PAGES} tasks, too many to look through.")


def make(settings: CampaignSettings, client: AsyncClient) -> GradientsProvider:
    """Return the provider; see `contract.MakeProvider`.

    Raises:
        MachineError: If there is no key.
    """
    if settings.gradients_key is None:
        raise MachineError(
            "The provider gradients needs a key.", hint="Set GRADIENTS_API_KEY, or write provider: local."
        )
    patience = Patience(tries=4, longest_s=30.0)
    service = Service(_NAME, settings.gradients_url, settings.gradients_key, timeout_s=120.0, patience=patience)
    return GradientsProvider(service, client, account=settings.gradients_account, settle_s=settings.gradients_settle_s)


def leads_to(link: str | None, object_key: str | None) -> bool:
    """Return whether a link is one to an object of our store, however it was signed."""
    if not link or not object_key:
        return False
    path = unquote(urlsplit(link).path)
    return path == f"/{object_key}" or path.endswith(f"/{object_key}")


def _says_unknown(reply: Reply) -> bool:
    """Return whether it says that it knows no such task; a wrong address says 404, too."""
    return reply.status == 404 and "task not found" in wire.words_of(reply.body).lower()


def _checked(reply: Reply) -> Reply:
    if not reply.good:
        raise _refusal(reply)
    return reply


def _refusal(reply: Reply) -> TunefleetError:
    said = wire.words_of(reply.body)
    match reply.status:
        case 401 | 403:
            return AuthError(f"{_NAME} refuses the key: {said}.", hint="Check GRADIENTS_API_KEY and GRADIENTS_API_URL.")
        case 402:
            return NeedsYou(f"{_NAME} wants to be paid first: {said}.", hint="Add credit to the account first.")
        case 429:
            return StepFailed(f"{_NAME} takes no more orders for now: {said}.")
        case status:
            return StepFailed(f"{_NAME} answers {status}: {said}.", hint="Check GRADIENTS_API_URL.")


def _first(*values: float | None) -> float | None:
    return next((each for each in values if each is not None), None)


def _promise(candidate: Candidate) -> tuple[bool, float]:
    """What is measured first, if not all are: by the provider's numbers, which decide nothing else."""
    loss = candidate.test_loss
    usable = loss is not None and loss > 0
    return not usable, loss if loss is not None and usable else 0.0
