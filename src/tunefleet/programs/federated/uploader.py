"""Sends updates beside the training: packed, hashed and sent in a thread, tried again until the server has them.

One update is on its way at a time, and the newest waits. One that could not be sent before the next came is left out:
the next has all its rows. Once the server may have heard of one, it is asked until it answers, so that no row counts
twice and none is lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tunefleet.client.federated import FederatedClient
from tunefleet.errors import TunefleetError
from tunefleet.programs.federated.contact import Contact, Ended, Patience
from tunefleet.programs.federated.packing import Packer
from tunefleet.programs.federated.progress import Progress, TakenFile
from tunefleet.wire.federated import Losses, UpdateCreate, UpdateTaken

logger = logging.getLogger("tunefleet.federation")


@dataclass(frozen=True, slots=True)
class Capture:
    """The adapter as it was at the end of a step.

    Args:
        step: Which.
        rows: That the training had seen by then, in all.
        version: Of the global adapter that it descends from.
        values: Copies, by published name.
        losses: On this worker's own data.
    """

    step: int
    rows: int
    version: int
    values: Mapping[str, torch.Tensor] = field(repr=False)
    losses: Losses = field(default_factory=Losses)


@dataclass(frozen=True, slots=True)
class Sent:
    """An update that the server has taken.

    Args:
        step: Of the worker.
        num_examples: What it weighs.
        reply: What the server said.
    """

    step: int
    num_examples: int
    reply: UpdateTaken


class Superseded(Exception):
    """A newer capture waits, and nothing of this one has counted."""


class Uploader:
    """A thread that sends captures.

    Args:
        client: To the federation.
        config: The adapter's `adapter_config.json`.
        packer: Writes the file.
        progress: Told what was taken.
        taken: Where that is written down.
        contact: Shared with the thread that fetches.
        refused: Called with what the server refused, and why.
        ended: Called when the thread ends.
    """

    def __init__(
        self,
        client: FederatedClient,
        config: Mapping[str, Any],
        packer: Packer,
        progress: Progress,
        taken: TakenFile,
        contact: Contact,
        refused: Callable[[Exception], None],
        ended: Callable[[], None],
    ) -> None:
        self._client = client
        self._config = dict(config)
        self._packer = packer
        self._progress = progress
        self._taken = taken
        self._contact = contact
        self._refused = refused
        self._over = ended
        self._changed = threading.Condition()
        self._next: Capture | None = None
        self._busy = self._ended = False
        self._may_supersede = False
        self._warned: set[str] = set()
        self.sent: list[Sent] = []
        self._thread = threading.Thread(target=self._run, name="tunefleet-federation-upload", daemon=True)
        self._thread.start()

    def submit(self, capture: Capture) -> None:
        """Send a capture when it can be; one that waits already is left out."""
        with self._changed:
            self._next = capture
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is on its way; False if the time was over before."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._idle, timeout_s)
            return self._idle

    @property
    def _idle(self) -> bool:
        return not self._busy and self._next is None

    def close(self) -> None:
        """Give up what is on its way."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (capture := self._take()) is not None:
            self._try(capture)
            with self._changed:
                self._busy = False
                self._changed.notify_all()
        self._over()

    def _try(self, capture: Capture) -> None:
        try:
            self._deliver(capture)
        except Superseded:
            logger.info("The update of step %d is left out: a newer one has its rows.", capture.step)
        except Ended:
            logger.debug("The update of step %d was on its way when the training ended.", capture.step)
        except Exception as error:
            if not isinstance(error, TunefleetError):
                logger.exception("The update of step %d could not be sent.", capture.step)
            self._refused(error)

    def _take(self) -> Capture | None:
        with self._changed:
            self._changed.wait_for(lambda: self._next is not None or self._ended)
            capture, self._next = self._next, None
            self._busy = capture is not None and not self._ended
            return capture if self._busy else None

    def _deliver(self, capture: Capture) -> None:
        num_examples = capture.rows - self._progress.taken
        if num_examples <= 0:
            logger.info("Step %d was uploaded before; its rows have counted already.", capture.step)
            return
        patience = Patience(self._contact, self._pause)
        packed = self._packer.pack(capture.values)
        try:
            self._may_supersede = True
            digest = patience.ask(lambda: self._client.send(packed.file))
        finally:
            self._may_supersede = False
            packed.file.unlink(missing_ok=True)
        body = UpdateCreate(
            worker=self._client.worker_id,
            step=capture.step,
            num_examples=num_examples,
            sha256=digest,
            config=self._config,
            base_version=capture.version,
            upload_dtype=self._packer.dtype,
            losses=capture.losses,
        )
        reply = patience.ask(lambda: self._client.announce(body))
        self._progress.taken, self._progress.taken_step = capture.rows, capture.step
        self.sent.append(Sent(capture.step, num_examples, reply))
        self._tell(capture, num_examples, reply)
        try:
            self._taken.note(self._progress)
            self._packer.keep(packed)
        except OSError as error:
            # The training knows; a resumed one would learn it from the next checkpoint.
            logger.warning("What the federation has taken could not be written down: %s", error)

    def _tell(self, capture: Capture, num_examples: int, reply: UpdateTaken) -> None:
        where = f"counts in round {reply.round}" if reply.counted else "does not count yet"
        logger.info("The update of step %d with %d rows %s.", capture.step, num_examples, where)
        if reply.warning is not None and reply.warning not in self._warned:
            self._warned.add(reply.warning)
            logger.warning("The federation says of the update of step %d: %s", capture.step, reply.warning)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(self._interrupted, seconds)
            if self._ended:
                raise Ended
            if self._may_supersede and self._next is not None:
                raise Superseded

    def _interrupted(self) -> bool:
        return self._ended or (self._may_supersede and self._next is not None)


def spool(folder: Path) -> Path:
    """Return the folder where files wait to be sent, empty."""
    place = folder / "outgoing"
    place.mkdir(parents=True, exist_ok=True)
    for left in place.iterdir():
        left.unlink()
    return place
