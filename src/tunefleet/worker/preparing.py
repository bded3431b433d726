"""From an offer to the job that is launched: its inputs and its checkpoint are on this machine, its GPUs are chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tunefleet.errors import InputError
from tunefleet.executors.base import JobExecutor
from tunefleet.jobs import new_launch_id
from tunefleet.spec import load_task_spec
from tunefleet.spec.kinds import task_kinds
from tunefleet.wire.jobfolder import Job, Participant
from tunefleet.wire.link import InputRef, Offer
from tunefleet.worker.bringing import Bringer
from tunefleet.worker.destinations import Destination
from tunefleet.worker.files import write_synced
from tunefleet.worker.mailbox import Mailbox
from tunefleet.worker.ports import Delivery
from tunefleet.worker.restoring import Restorer
from tunefleet.worker.site import Site


class Preparation:
    """Prepares the launches of one attempt.

    Args:
        site: Collaborators.
        executor: The kind's executor.
        mailbox: Interrupts every wait.
        delivery: The server's side of the attempt.
    """

    def __init__(self, site: Site, executor: JobExecutor, mailbox: Mailbox, delivery: Delivery) -> None:
        self._site = site
        self._executor = executor
        self._mailbox = mailbox
        self._delivery = delivery

    def job(self, offer: Offer, *, again: bool, pause: Callable[[], None], point: str | None = None) -> Job:
        """Prepare a launch.

        Args:
            offer: The attempt.
            again: Whether the attempt was launched before; then it goes on from its own checkpoints.
            pause: Called when the inputs are there; may raise to give the launch up.
            point: Where its gang meets, if it has one.

        Raises:
            InputError: If it may not run here, or its checkpoint cannot be had.
            MachineError: If this machine cannot be a node of its gang.
            Dropped, Stopped: While something is fetched.
        """
        gang = self._site.place.job(offer, point)
        inputs = self.inputs(offer)
        pause()
        from_step = self._restore(offer, again=again)
        self._introduce(offer)
        job = self._executor.job(offer, launch=new_launch_id(), inputs=inputs, gpus=self._site.gpus(offer))
        return job.model_copy(update={"env": self._site.env | job.env, "from_step": from_step, "gang": gang})

    def inputs(self, offer: Offer) -> dict[str, str]:
        """Bring the inputs of an offer, and return pointer → local path.

        Raises:
            InputError: If it may not run here, or something is not to be had.
            Dropped, Stopped: While something is fetched.
        """
        self._check_code(offer)
        for spec in (offer.spec, *(each.spec for each in offer.merged)):
            self._site.secrets.check(spec, offer.kind, offer.project)
        output = offer.spec.get("output") or {}
        sleep, root = self._mailbox.pause_whole, self._site.folder(offer.task_id).root
        Destination(offer.task_id, output, self._site.transfers, self._site.secrets, sleep).check(root)
        inputs = {pointer: self._input(ref) for pointer, ref in offer.inputs.items()}
        return inputs | Bringer(self._site, offer, self._mailbox, self._delivery).bring(inputs)

    def _introduce(self, offer: Offer) -> None:
        """Tell the job how it takes part in its federation, if it does; not in job.json, which holds no secret."""
        part = offer.federation
        if part is not None:
            told = Participant(url=self._site.transfers.server_url, **part.model_dump())
            write_synced(self._site.folder(offer.task_id).federation_json, told.model_dump_json())

    def _check_code(self, offer: Offer) -> None:
        if not self._site.allow_code and _brings_code(offer):
            raise InputError(
                f"The task {offer.name} runs code of its document or model (trust_remote_code), which this worker does "
                "not allow.",
                hint="Start a worker with --allow-code if you trust that code.",
            )

    def _input(self, ref: InputRef) -> str:
        store, fetch = self._site.inputs, self._delivery.fetch_artifact
        return str(self._mailbox.patiently(lambda: store.materialise(ref, fetch)))

    def _restore(self, offer: Offer, *, again: bool) -> int | None:
        """Bring the checkpoint that the attempt goes on from."""
        if offer.resume is None:
            return None
        resume = offer.resume.model_copy(update={"exact": False}) if again else offer.resume
        return Restorer(self._site.folder(offer.task_id), self._site.folder, self._fetch).prepare(resume)

    def _fetch(self, ref: InputRef, dest: Path) -> Path:
        return self._mailbox.patiently(lambda: self._delivery.fetch_artifact(ref.digest, dest))


def _brings_code(offer: Offer) -> bool:
    if offer.kind in task_kinds():
        return load_task_spec(offer.spec).requires_code
    # A kind of another package; what a model is called is the same everywhere.
    source = (offer.spec.get("model") or {}).get("source") or {}
    return bool(source.get("trust_remote_code"))
