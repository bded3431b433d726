"""Delivery of the results of light tasks to the destination of their spec, if it has one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tunefleet.client.external.interrupt import CancelToken
from tunefleet.errors import InputError, MachineError
from tunefleet.fsutil import write_synced
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime.secrets import Secrets
from tunefleet.schemas.worker_guide import MANIFEST_NAME, ResultEnvelope
from tunefleet.schemas.worker_link import Finish, Offer
from tunefleet.worker.outputs.destinations import DeliveryError, Destination, silent
from tunefleet.worker.outputs.output_files import describe_folder
from tunefleet.worker.transfers import Transfers

_READABLE: Final = 0o644


@dataclass(frozen=True, slots=True)
class LightDelivery:
    """Delivers for the light tasks of one worker."""

    transfers: Transfers
    secrets: Secrets
    worker_id: str
    sleep: Callable[[float], None]
    held_up: Callable[[str | None], None] = silent

    def refusal(self, offer: Offer) -> Finish | None:
        """Return the end of a task whose destination or use of a secret is not allowed; None if it may run."""
        try:
            for spec in (offer.spec, *(each.spec for each in offer.merged)):
                self.secrets.check(spec, offer.kind, offer.project)
            destination = self._destination(offer)
            if destination is not None:
                destination.check()
        except InputError as error:
            return Finish(token=offer.token, outcome="failed", reason=TaskReason.BAD_INPUT, error=str(error))
        except MachineError as error:
            return Finish(token=offer.token, outcome="failed", reason=TaskReason.CRASHED, error=str(error))
        return None

    def wanted(self, task: Offer, finish: Finish) -> bool:
        """Return whether an end requires a delivery."""
        return finish.outcome == "completed" and self._destination(task) is not None

    def delivered(self, task: Offer, kind: str, finish: Finish, stop: CancelToken | None = None) -> Finish:
        """Deliver the result of a completed task to its destination, and return the resulting end.

        Raises:
            Stopped: If the delivery is no longer wanted.
        """
        destination = self._destination(task)
        if destination is None or finish.outcome != "completed":
            return finish
        about = {"attempt": task.attempt, "name": task.name, "kind": kind, "workflow_id": task.workflow_id}
        envelope = ResultEnvelope(
            task_id=task.task_id,
            result=finish.result,
            worker_id=self.worker_id,
            metadata=about,
            received_at=datetime.now(UTC),
        )
        try:
            destination.check_folder()
            destination.deliver(envelope, (), stop)
            if destination.folder is not None:
                _write(destination.folder, envelope)
        except (DeliveryError, InputError, MachineError, OSError) as error:
            reason = TaskReason.BAD_INPUT if isinstance(error, InputError) else TaskReason.DELIVERY_FAILED
            kept = finish.result if reason is TaskReason.DELIVERY_FAILED else {}
            return Finish(token=finish.token, outcome="failed", reason=reason, error=str(error), result=kept)
        return finish

    def _destination(self, task: Offer) -> Destination | None:
        output = task.spec.get("output") or {}
        wanted = output.get("destination") or {}
        if not (wanted.get("url") or wanted.get("path")):
            return None
        secrets, sleep, held_up = self.secrets, self.sleep, self.held_up
        return Destination(task.task_id, output, self.transfers, secrets, sleep, held_up, project=task.project)


def _write(folder: Path, envelope: ResultEnvelope) -> None:
    write_synced(folder / "responses.json", json.dumps(envelope.result, indent=1), mode=_READABLE)
    write_synced(folder / "results.json", envelope.model_dump_json(indent=1), mode=_READABLE)
    manifest = describe_folder(envelope.task_id, folder, ())
    write_synced(folder / MANIFEST_NAME, manifest.model_dump_json(indent=1), mode=_READABLE)
