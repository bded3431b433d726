"""Builds the job of an offer: fetches its inputs and its checkpoint, and allocates its GPUs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tunefleet.client.external.interrupt import CancelToken
from tunefleet.client.transfer import OnProgress
from tunefleet.errors import InputError
from tunefleet.executors.base import JobExecutor
from tunefleet.fsutil import write_synced
from tunefleet.runtime import new_launch_id
from tunefleet.schemas.job_folder import Job, Participant
from tunefleet.schemas.worker_link import InputRef, Offer
from tunefleet.spec import load_task_spec
from tunefleet.spec.documents.paths import WorkerPath, worker_paths
from tunefleet.spec.documents.typed import task_kinds
from tunefleet.worker.context import WorkerContext
from tunefleet.worker.interfaces import Delivery
from tunefleet.worker.jobs.checkpoint_restore import CheckpointRestorer
from tunefleet.worker.jobs.fetch_progress import InputDownload
from tunefleet.worker.jobs.spec_files import ReferenceFetcher
from tunefleet.worker.mailbox import Mailbox
from tunefleet.worker.outputs.destinations import Destination
from tunefleet.worker.transfers import Transfers

logger = logging.getLogger(__name__)


class Preparation:
    """Prepares the launches of one attempt."""

    def __init__(
        self, worker_context: WorkerContext, executor: JobExecutor, mailbox: Mailbox, delivery: Delivery
    ) -> None:
        self._context = worker_context
        self._executor = executor
        self._mailbox = mailbox
        self._delivery = delivery

    def job(self, offer: Offer, *, again: bool, check: Callable[[], None], point: str | None = None) -> Job:
        """Prepare a launch.

        Args:
            check: Called several times a second while inputs are fetched, and once after it; may raise to abort.

        Raises:
            InputError: If it may not run here, or its checkpoint is not available.
            MachineError: If this machine cannot be a node of its gang.
            Dropped, Stopped: While something is fetched.
        """
        gang = self._context.rendezvous.job(offer, point)
        inputs, from_step = self._mailbox.interruptibly(
            lambda stop: (self.inputs(offer, stop), self._restore(offer, stop, again=again)), check
        )
        self._context.outbox.fetching(offer.token, None)
        check()
        self._introduce(offer)
        job = self._executor.job(offer, launch=new_launch_id(), inputs=inputs, gpus=self._context.gpus(offer))
        return job.model_copy(update={"env": self._context.env | job.env, "from_step": from_step, "gang": gang})

    def inputs(self, offer: Offer, stop: CancelToken | None = None) -> dict[str, str]:
        """Fetch the inputs of an offer, and return pointer → local path.

        Raises:
            InputError: If it may not run here, or an input is not available.
            Dropped, Stopped: While something is fetched.
        """
        self._check_code(offer)
        for spec in (offer.spec, *(each.spec for each in offer.merged)):
            self._context.secrets.check(spec, offer.kind, offer.project)
        output = offer.spec.get("output") or {}
        sleep, root, transfers = self._mailbox.sleep, self._context.folder(offer.task_id).root, self._context.transfers
        target = Destination(offer.task_id, output, transfers, self._context.secrets, sleep, project=offer.project)
        target.check(root)
        here = paths_here(offer, transfers)
        fetching = InputDownload(self._context, self._mailbox, offer.token, stop)
        inputs = here | {pointer: self._input(ref, fetching) for pointer, ref in offer.inputs.items()}
        return inputs | ReferenceFetcher(self._context, offer, self._mailbox, self._delivery, fetching).bring(inputs)

    def _introduce(self, offer: Offer) -> None:
        """Write the access data of the job's federation, if it has one."""
        # Not in job.json, which holds no secret.
        part = offer.federation
        if part is not None:
            participant = Participant(url=self._context.transfers.server_url, **part.model_dump())
            write_synced(self._context.folder(offer.task_id).federation_json, participant.model_dump_json())

    def _check_code(self, offer: Offer) -> None:
        if not self._context.allow_code and _brings_code(offer):
            raise InputError(
                f"{offer.name} runs code of its workflow file or model (trust_remote_code), which this worker "
                "does not allow.",
                hint="Start a worker with --allow-code if you trust that code.",
            )

    def _input(self, ref: InputRef, fetching: InputDownload) -> str:
        def fetch(on_progress: OnProgress) -> Path:
            return self._context.inputs.materialise(
                ref, lambda digest, dest: self._delivery.fetch_artifact(digest, dest, on_progress=on_progress)
            )

        return str(fetching.get(ref.name, fetch))

    def _restore(self, offer: Offer, stop: CancelToken, *, again: bool) -> int | None:
        """Restore the checkpoint that the attempt resumes from."""
        if offer.resume is None:
            return None
        # A relaunch resumes from its own newest checkpoint, even if the attempt started at an exact one.
        resume = offer.resume.model_copy(update={"exact": False}) if again else offer.resume
        fetching = InputDownload(self._context, self._mailbox, offer.token, stop)

        def fetch(ref: InputRef, dest: Path) -> Path:
            return fetching.get(
                ref.name,
                lambda on_progress: self._delivery.fetch_artifact(ref.digest, dest, on_progress=on_progress),
            )

        return CheckpointRestorer(self._context.folder(offer.task_id), self._context.folder, fetch).prepare(resume)


def paths_here(offer: Offer, transfers: Transfers) -> dict[str, str]:
    """Return the paths of a spec that exist on this worker: pointer → path, links resolved."""
    # Programs read a path only if it is among their inputs, so a path that is refused here is never read.
    found: dict[str, str] = {}
    missing: dict[str, tuple[WorkerPath, InputError]] = {}
    for named in worker_paths(offer.spec):
        if named.pointer in offer.inputs:
            continue
        at = f"spec.{named.pointer}"
        load = (offer.spec.get("checkpoint") or {}).get("load") or {}
        inner = load.get("subdir") if named.pointer.startswith("checkpoint.load.") else None
        try:
            path = transfers.readable(named.value, offer.project, at, inner)
        except InputError as error:
            missing[named.pointer] = named, error
            continue
        if path is None:
            missing[named.pointer] = named, InputError(f"{at}: {named.value} not found on this worker.")
        else:
            found[named.pointer] = str(path)
    for named, fault in missing.values():
        if named.maybe_hub_name:
            continue
        if all(other in missing for other in named.beside):
            raise fault
        logger.warning("Skipped, since an alternative source is set: %s", fault)
    return found


def _brings_code(offer: Offer) -> bool:
    if offer.kind in task_kinds():
        return load_task_spec(offer.spec).requires_code
    # A kind of another package has no spec class here; the model block has the same shape everywhere.
    source = (offer.spec.get("model") or {}).get("source") or {}
    return bool(source.get("trust_remote_code"))
