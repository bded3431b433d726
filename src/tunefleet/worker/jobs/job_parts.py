"""Coalesced tasks: tasks that an attempt's run computes in addition to its own, each with its own token and result.

The run continues as long as one of them is wanted. Its program reads them from `merge_children` of its job, writes
their results under `children` of its result, and their files into `children/<task id>/` of the job folder. A task
without an entry there fails, as does one whose entry is `{"ok": false, "error": "…"}`.
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
from tunefleet.worker.context import WorkerContext
from tunefleet.worker.jobs.preparation import Preparation
from tunefleet.worker.mailbox import Dropped, Mailbox, Stopped
from tunefleet.worker.outputs.deliver import Deliverer, reason_of

logger = logging.getLogger(__name__)

CHILDREN: Final = "children"
# Marks the folder of a task that ran with another as a job folder, although no job ran in it.
MARK: Final = "merged.json"


def own_offer(offer: Offer, part: MergedTask) -> Offer:
    """Return the offer of one of the coalesced tasks."""
    return offer.model_copy(
        update={
            "token": part.token, "task_id": part.task_id, "workflow_id": part.workflow_id, "attempt": part.attempt,
            "name": part.name, "spec": part.spec, "inputs": part.inputs, "merged": (), "resume": None,
        }
    )  # fmt: skip


def missing(offer: Offer, part: MergedTask) -> Finish:
    """Return the end of a task for which the run returned no result."""
    error = (
        f"The run of {offer.task_id} ({offer.name}), which also ran {part.task_id} ({part.name}), "
        "returned no result for it."
    )
    return Finish(token=part.token, outcome="failed", reason=TaskReason.BUG, error=error)


def failed(token: str, result: Mapping[str, Any]) -> Finish | None:
    """Return the end of a task whose entry in the result is an error; None if it has a result."""
    error = result.get("error") if result.get("ok") is False else None
    if not isinstance(error, str):
        return None
    return Finish(token=token, outcome="failed", reason=TaskReason.BAD_INPUT, error=error)


def release(token: str, offer: Offer, error: str | None) -> Finish:
    """Return the end of a task whose coalesced run did not complete: it is retried on its own."""
    message = f"The run of {offer.task_id} ({offer.name}), which also ran it, failed: {error or 'it ended.'}"
    return Finish(token=token, outcome="released", reason=TaskReason.RELEASED, error=message)


def each_end(offer: Offer, finish: Finish) -> list[tuple[Offer, Finish]]:
    """Return the end of a light task and of those coalesced with it, each with its own offer."""
    if not offer.merged:
        return [(offer, finish)]
    owns = [own_offer(offer, part) for part in offer.merged]
    if finish.outcome != "completed":
        released = finish.model_copy(update={"outcome": "released", "reason": TaskReason.RELEASED})
        return [(offer, released), *((own, release(own.token, offer, finish.error)) for own in owns)]
    result = dict(finish.result)
    children = result.pop(CHILDREN, None)
    children = children if isinstance(children, Mapping) else {}
    ends = [(offer, finish.model_copy(update={"result": result}))]
    for own, part in zip(owns, offer.merged, strict=True):
        entry = children.get(part.task_id)
        if isinstance(entry, dict):
            completed = Finish(token=own.token, outcome="completed", reason=TaskReason.FINISHED, result=entry)
            ends.append((own, failed(own.token, entry) or completed))
        else:
            ends.append((own, missing(offer, part)))
    return ends


class CoalescedTasks:
    """The tasks coalesced with one attempt of a job kind."""

    def __init__(self, worker_context: WorkerContext, offer: Offer, *, executor: JobExecutor, mailbox: Mailbox) -> None:
        self._context = worker_context
        self._offer = offer
        self._executor = executor
        self._mailbox = mailbox
        self._news = threading.Condition()
        self._live = {part.token: part for part in offer.merged}
        self._reported: set[str] = set()
        self._ends: dict[str, Finish] = {}

    @property
    def tokens(self) -> tuple[str, ...]:
        """Tokens of the held tasks, whose end the server has not stored."""
        with self._news:
            return (*self._live, *self._reported)

    @property
    def task_ids(self) -> tuple[str, ...]:
        """Ids of all of them."""
        return tuple(part.task_id for part in self._offer.merged)

    @property
    def wanted(self) -> bool:
        """Whether one of them is still wanted."""
        return bool(self._live)

    @property
    def settled(self) -> bool:
        """Whether the server has stored the end of all of them."""
        with self._news:
            return not self._live and not self._reported

    # Called by the exchange.

    def accept(self) -> None:
        """Report that they are accepted."""
        for token in self.tokens:
            self._context.outbox.accept(token)

    def drop(self, token: str) -> None:
        """Drop a task whose token is void."""
        self._forget(token)
        self._context.outbox.forget(token)

    def finished(self, token: str) -> None:
        """Forget a task whose end the server has stored."""
        self._forget(token)

    def apply_desired(self, desired: Desired) -> None:
        """Apply the desired state of one: a cancel ends it immediately without a result; a pause has no effect."""
        self._context.outbox.reach(Reached(token=desired.token, generation=desired.generation))
        if desired.action == "cancel":
            end = Finish(token=desired.token, outcome="cancelled", reason=TaskReason.CANCELLED_BY_USER)
            self._say([end])

    def wait_until_settled(self, stopped: Callable[[], bool]) -> bool:
        """Wait until the server has stored the end of all; False if the worker stops first."""
        with self._news:
            while (self._live or self._reported) and not stopped():
                self._news.wait(0.2)
            return not self._live and not self._reported

    # Called by the attempt's thread.

    def prepare(self, check: Callable[[], None]) -> tuple[MergeChild, ...]:
        """Fetch the inputs of the wanted tasks; a task whose inputs are not available fails alone.

        Args:
            check: Called several times a second during a fetch; may raise to abort it.

        Raises:
            Dropped, Stopped: While something is fetched.
        """
        children: list[MergeChild] = []
        for part in self._wanted():
            own = own_offer(self._offer, part)
            delivery = self._context.delivery(part.token)
            try:
                preparation = Preparation(self._context, self._executor, self._mailbox, delivery)
                inputs = self._mailbox.interruptibly(partial(preparation.inputs, own), check)
            except (TunefleetError, OSError) as error:
                logger.warning("Task %s failed to start: %s", part.task_id, error)
                failed = Finish(token=part.token, outcome="failed", reason=reason_of(error), error=str(error))
                self._say([failed])
                continue
            finally:
                delivery.close()
            about = {"name": part.name, "workflow_id": part.workflow_id, "attempt": part.attempt}
            children.append(MergeChild(task_id=part.task_id, spec=part.spec, inputs=inputs, metadata=about))
        return tuple(children)

    def take_results(self, folder: JobFolder, launch: str | None) -> None:
        """Move the results of the coalesced tasks out of the run's own result, into a file next to it."""
        # Once per launch: after a restart the result no longer contains them, and the file must not be overwritten.
        if not self._offer.merged or (read_json(self._kept(folder)) or {}).get("launch") == launch:
            return
        result = self._executor.result(folder)
        kept = {"launch": launch, CHILDREN: result.pop(CHILDREN, None)}
        write_synced(self._kept(folder), json.dumps(kept))
        write_synced(folder.responses_json, json.dumps(result, indent=1), mode=0o644)

    def deliver(self, folder: JobFolder) -> None:
        """Deliver the result of each wanted task, and build its end.

        Raises:
            Dropped, Stopped: During a delivery.
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
        """Report the ends that `deliver` has built."""
        self._say([finish for token, finish in self._ends.items() if token in self._live])

    def release(self, error: str | None) -> None:
        """Release the tasks without an end: the run has failed, or was stopped early."""
        self._say([release(part.token, self._offer, error) for part in self._wanted()])

    def say_spooled(self) -> None:
        """Report the ends that were written before a restart, and release the other tasks."""
        for part in self._wanted():
            finish = self._spooled(part)
            if finish is not None:
                self._ends[part.token] = finish
        self.say_ends()
        self.release("the worker restarted.")

    def _delivered(self, part: MergedTask, result: dict[str, Any]) -> Finish:
        delivery = self._context.delivery(part.token)
        own = own_offer(self._offer, part)
        deliverer = Deliverer(
            self._context, own, executor=self._executor, mailbox=self._mailbox, delivery=delivery,
            unwanted=lambda: part.token not in self._live,
        )  # fmt: skip
        try:
            self._lay_out(part, result)
            return deliverer.finish_of_part()
        except (Dropped, Stopped):
            raise
        except (TunefleetError, OSError) as error:
            logger.warning("Could not deliver the result of task %s: %s", part.task_id, error)
            reason = TaskReason.BAD_INPUT if isinstance(error, ResultError) else reason_of(error)
            return Finish(token=part.token, outcome="failed", reason=reason, error=str(error))
        finally:
            delivery.close()

    def _lay_out(self, part: MergedTask, result: dict[str, Any]) -> None:
        """Build the task's own folder from the files that the run has left for it."""
        own = self._context.folder(part.task_id)
        make_private(own.root)
        write_synced(own.root / MARK, json.dumps({"task_id": self._offer.task_id, "attempt": part.attempt}))
        left = self._context.folder(self._offer.task_id).root / CHILDREN / part.task_id
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
                self._reported.add(finish.token)
            # After the lock is released: the outbox has a lock of its own, under which a draft reads `tokens`.
            self._context.outbox.finish(finish)
            self._mailbox.wake()

    def _forget(self, token: str) -> None:
        with self._news:
            self._live.pop(token, None)
            self._reported.discard(token)
            self._news.notify_all()
        self._mailbox.wake()

    def _spool(self, part: MergedTask, finish: Finish) -> None:
        own = self._context.folder(part.task_id)
        try:
            make_private(own.root)
            write_synced(own.finish_json, finish.model_dump_json())
        except OSError as error:
            logger.warning("Could not write the end of task %s: %s", part.task_id, error)

    def _spooled(self, part: MergedTask) -> Finish | None:
        try:
            finish = Finish.model_validate_json(self._context.folder(part.task_id).finish_json.read_bytes())
        except (OSError, ValidationError):
            return None
        return finish if finish.token == part.token else None


def _move(entry: Path, to: Path) -> None:
    if to.is_dir() and not to.is_symlink():
        shutil.rmtree(to)
    entry.replace(to)
