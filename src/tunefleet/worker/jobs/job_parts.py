"""The tasks that one attempt's run computes beside its own: each has its own token, folder, result and end.

The run goes on for as long as somebody wants it. Its program finds them as `merge_children` of its job, writes what it
has for each under `children` of its result, and files for one into `children/<task id>/` of the job folder. Nobody is
given another's result: who is missing there fails by name, and who has `{"ok": false, "error": "…"}` for what it says.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tunefleet.errors import TunefleetError
from tunefleet.executors.base import JobExecutor, ResultError
from tunefleet.fsutil import write_synced
from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.job_folder import JobFolder, MergeChild
from tunefleet.schemas.worker_link import Desired, Finish, MergedTask, Offer, Reached
from tunefleet.trainer_control.files import make_private, read_json
from tunefleet.worker.context import Site
from tunefleet.worker.jobs.preparation import Preparation
from tunefleet.worker.mailbox import Dropped, Mailbox, Stopped
from tunefleet.worker.outputs.deliver import Deliverer, reason_of

logger = logging.getLogger(__name__)

CHILDREN: Final = "children"
MARK: Final = "merged.json"
"""In the folder of a task that ran with another: it is a job folder, though no job ran in it."""


def own_offer(offer: Offer, part: MergedTask) -> Offer:
    """Return what an offer says of one of the tasks that go along."""
    return offer.model_copy(
        update={
            "token": part.token, "task_id": part.task_id, "workflow_id": part.workflow_id, "attempt": part.attempt,
            "name": part.name, "spec": part.spec, "inputs": part.inputs, "merged": (), "resume": None,
        }
    )  # fmt: skip


def missing(offer: Offer, part: MergedTask) -> Finish:
    """Return the end of a task of which the run that computed it says nothing."""
    error = (
        f"The run of {offer.task_id} ({offer.name}), which computed {part.task_id} ({part.name}) too, "
        "returned no result for it."
    )
    return Finish(token=part.token, outcome="failed", reason=TaskReason.BUG, error=error)


def failed(token: str, result: Mapping[str, Any]) -> Finish | None:
    """Return the end of a task that the run could not compute, though it could others; None if it has a result."""
    error = result.get("error") if result.get("ok") is False else None
    if not isinstance(error, str):
        return None
    return Finish(token=token, outcome="failed", reason=TaskReason.BAD_INPUT, error=error)


def release(token: str, offer: Offer, error: str | None) -> Finish:
    """Return the end of a task whose shared run has ended otherwise than well: it is tried again by itself."""
    told = f"The run of {offer.task_id} ({offer.name}), which computed it too, did not end well: {error or 'it ended.'}"
    return Finish(token=token, outcome="released", reason=TaskReason.RELEASED, error=told)


def each_end(offer: Offer, finish: Finish) -> list[tuple[Offer, Finish]]:
    """Return how the task of a light offer ended, and those that went along, each with an offer of its own."""
    if not offer.merged:
        return [(offer, finish)]
    owns = [own_offer(offer, part) for part in offer.merged]
    if finish.outcome != "completed":
        released = finish.model_copy(update={"outcome": "released", "reason": TaskReason.RELEASED})
        return [(offer, released), *((own, release(own.token, offer, finish.error)) for own in owns)]
    result = dict(finish.result)
    found = result.pop(CHILDREN, None)
    found = found if isinstance(found, Mapping) else {}
    ends = [(offer, finish.model_copy(update={"result": result}))]
    for own, part in zip(owns, offer.merged, strict=True):
        mine = found.get(part.task_id)
        if isinstance(mine, dict):
            good = Finish(token=own.token, outcome="completed", reason=TaskReason.FINISHED, result=mine)
            ends.append((own, failed(own.token, mine) or good))
        else:
            ends.append((own, missing(offer, part)))
    return ends


class Parts:
    """The tasks that go along with one attempt of a job kind."""

    def __init__(self, site: Site, offer: Offer, *, executor: JobExecutor, mailbox: Mailbox) -> None:
        self._site = site
        self._offer = offer
        self._executor = executor
        self._mailbox = mailbox
        self._news = threading.Condition()
        self._live = {part.token: part for part in offer.merged}
        self._said: set[str] = set()
        self._ends: dict[str, Finish] = {}

    @property
    def tokens(self) -> tuple[str, ...]:
        """Tokens of those that are held: their end is not known to the server."""
        with self._news:
            return (*self._live, *self._said)

    @property
    def task_ids(self) -> tuple[str, ...]:
        """Ids of all of them."""
        return tuple(part.task_id for part in self._offer.merged)

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for one of them."""
        return bool(self._live)

    @property
    def settled(self) -> bool:
        """Whether the server knows the end of all."""
        with self._news:
            return not self._live and not self._said

    # What the exchange tells.

    def accept(self) -> None:
        """Say that they are taken."""
        for token in self.tokens:
            self._site.outbox.accept(token)

    def drop(self, token: str) -> None:
        """Nobody waits for it any more."""
        self._forget(token)
        self._site.outbox.forget(token)

    def finished(self, token: str) -> None:
        """The server knows its end."""
        self._forget(token)

    def heed(self, desired: Desired) -> None:
        """Do what the server wants of one: a cancel ends it at once, its result is dropped; a pause waits in vain."""
        self._site.outbox.reach(Reached(token=desired.token, generation=desired.generation))
        if desired.action == "cancel":
            end = Finish(token=desired.token, outcome="cancelled", reason=TaskReason.CANCELLED_BY_USER)
            self._say([end])

    def wait_until_settled(self, stopped: Callable[[], bool]) -> bool:
        """Wait until the server knows the end of all; `False` if the worker goes before."""
        with self._news:
            while (self._live or self._said) and not stopped():
                self._news.wait(0.2)
            return not self._live and not self._said

    # What the attempt's thread does.

    def prepare(self, check: Callable[[], None]) -> tuple[MergeChild, ...]:
        """Bring the inputs of those that are wanted; one whose inputs cannot be had fails by itself.

        Args:
            check: Called several times a second while something is fetched; may raise to give it up.

        Raises:
            Dropped, Stopped: While something is fetched.
        """
        found: list[MergeChild] = []
        for part in self._wanted():
            own = own_offer(self._offer, part)
            delivery = self._site.delivery(part.token)
            try:
                preparation = Preparation(self._site, self._executor, self._mailbox, delivery)
                inputs = self._mailbox.interruptibly(partial(preparation.inputs, own), check)
            except (TunefleetError, OSError) as error:
                logger.warning("Task %s cannot run: %s", part.task_id, error)
                failed = Finish(token=part.token, outcome="failed", reason=reason_of(error), error=str(error))
                self._say([failed])
                continue
            finally:
                delivery.close()
            about = {"name": part.name, "workflow_id": part.workflow_id, "attempt": part.attempt}
            found.append(MergeChild(task_id=part.task_id, spec=part.spec, inputs=inputs, metadata=about))
        return tuple(found)

    def take_results(self, folder: JobFolder, launch: str | None) -> None:
        """Take what the run says of others out of its own result, once; it is kept beside it until it is delivered."""
        if not self._offer.merged or (read_json(self._kept(folder)) or {}).get("launch") == launch:
            return
        result = self._executor.result(folder)
        kept = {"launch": launch, CHILDREN: result.pop(CHILDREN, None)}
        write_synced(self._kept(folder), json.dumps(kept))
        write_synced(folder.responses_json, json.dumps(result, indent=1), mode=0o644)

    def deliver(self, folder: JobFolder) -> None:
        """Deliver what the run has left for each that is wanted, and make up its end.

        Raises:
            Dropped, Stopped: Meanwhile.
        """
        kept = read_json(self._kept(folder)) or {}
        results = kept.get(CHILDREN)
        for part in self._wanted():
            result = results.get(part.task_id) if isinstance(results, Mapping) else None
            if isinstance(result, dict):
                finish = failed(part.token, result) or self._delivered(part, result)
            else:
                finish = missing(self._offer, part)
            self._ends[part.token] = finish
            self._spool(part, finish)

    def say_ends(self) -> None:
        """Say the ends that were made up."""
        self._say([finish for token, finish in self._ends.items() if token in self._live])

    def release(self, error: str | None) -> None:
        """Give those back that nothing was said of: the run has failed, or ended before its time."""
        self._say([release(part.token, self._offer, error) for part in self._wanted()])

    def say_spooled(self) -> None:
        """Say the ends that were written down before a restart, and give the others back."""
        for part in self._wanted():
            finish = self._spooled(part)
            if finish is not None:
                self._ends[part.token] = finish
        self.say_ends()
        self.release("the worker was started anew.")

    def _delivered(self, part: MergedTask, result: dict[str, Any]) -> Finish:
        delivery = self._site.delivery(part.token)
        own = own_offer(self._offer, part)
        deliverer = Deliverer(
            self._site, own, executor=self._executor, mailbox=self._mailbox, delivery=delivery,
            unwanted=lambda: part.token not in self._live,
        )  # fmt: skip
        try:
            self._lay_out(part, result)
            return deliverer.finish_of_part()
        except (Dropped, Stopped):
            raise
        except (TunefleetError, OSError) as error:
            logger.warning("The result of task %s cannot be delivered: %s", part.task_id, error)
            reason = TaskReason.BAD_INPUT if isinstance(error, ResultError) else reason_of(error)
            return Finish(token=part.token, outcome="failed", reason=reason, error=str(error))
        finally:
            delivery.close()

    def _lay_out(self, part: MergedTask, result: dict[str, Any]) -> None:
        """Make the task's own folder of what the run has left for it."""
        own = self._site.folder(part.task_id)
        make_private(own.root)
        write_synced(own.root / MARK, json.dumps({"task_id": self._offer.task_id, "attempt": part.attempt}))
        left = self._site.folder(self._offer.task_id).root / CHILDREN / part.task_id
        for entry in sorted(left.iterdir()) if left.is_dir() else ():
            _move(entry, own.root / entry.name)
        write_synced(own.responses_json, json.dumps(result, indent=1), mode=0o644)

    @staticmethod
    def _kept(folder: JobFolder) -> Path:
        return folder.root / "children.json"

    def _wanted(self) -> list[MergedTask]:
        with self._news:
            return list(self._live.values())

    def _say(self, finishes: Sequence[Finish]) -> None:
        for finish in finishes:
            with self._news:
                if self._live.pop(finish.token, None) is None:
                    continue
                self._said.add(finish.token)
            self._site.outbox.finish(finish)
            self._mailbox.wake()

    def _forget(self, token: str) -> None:
        with self._news:
            self._live.pop(token, None)
            self._said.discard(token)
            self._news.notify_all()
        self._mailbox.wake()

    def _spool(self, part: MergedTask, finish: Finish) -> None:
        own = self._site.folder(part.task_id)
        try:
            make_private(own.root)
            write_synced(own.finish_json, finish.model_dump_json())
        except OSError as error:
            logger.warning("The end of task %s cannot be written down: %s", part.task_id, error)

    def _spooled(self, part: MergedTask) -> Finish | None:
        try:
            finish = Finish.model_validate_json(self._site.folder(part.task_id).finish_json.read_bytes())
        except (OSError, ValidationError):
            return None
        return finish if finish.token == part.token else None


def _move(entry: Path, to: Path) -> None:
    if to.is_dir() and not to.is_symlink():
        shutil.rmtree(to)
    entry.replace(to)
