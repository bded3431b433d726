"""Sends updates in a background thread: packed, hashed, and retried until the server has accepted them.

One update is in transit at a time, and only the newest one waits. An update that could not be sent before the next one
is dropped: the next one includes its rows, except for rows whose training was replaced by a version. Once the server
may have received an update, it is retried until there is an answer, so that no row counts twice and none is lost; if
the server fails on the same update repeatedly, the next one is sent and states which rows came before it.

An update counts once, and is not given up as long as it may have arrived.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from tunefleet.artifacts import hash_file
from tunefleet.client.federation.client import FederatedClient
from tunefleet.client.federation.transfer import AT_ONCE_BYTES
from tunefleet.errors import ArtifactError, GoneError, InputError, TooLargeError, TunefleetError, UnreachableError
from tunefleet.schemas.federated import Losses, UpdateCreate, UpdateTaken
from tunefleet.workloads.federated.contact import Reachability, RetryPolicy, SessionEnded, is_retryable
from tunefleet.workloads.federated.state import Intent, Progress, TakenFile
from tunefleet.workloads.federated.update_compression import Packer

# Number of server errors after which a delivery is given up; a server that does not respond is not counted.
_FAULTS: Final = 8
logger = logging.getLogger("tunefleet.federation")


@dataclass(frozen=True, slots=True)
class Capture:
    """A copy of the adapter at the end of a step."""

    step: int
    rows: int
    version: int
    values: Mapping[str, torch.Tensor] = field(repr=False)
    losses: Losses = field(default_factory=Losses)
    given_up: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """An update that the server accepted."""

    step: int
    num_examples: int
    reply: UpdateTaken


class Superseded(Exception):
    """A newer capture replaces this one, which was not counted or on which the server fails every time."""


class Uploader:
    """A thread that sends captures."""

    def __init__(
        self,
        client: FederatedClient,
        config: Mapping[str, Any],
        packer: Packer,
        progress: Progress,
        taken: tuple[TakenFile, Intent | None],
        reachability: Reachability,
        *,
        refused: Callable[[Exception], None],
        ended: Callable[[], None],
    ) -> None:
        self._client = client
        self._config = dict(config)
        self._packer = packer
        self._progress = progress
        self._taken, self._intent = taken
        self._retries = RetryPolicy(reachability, self._pause)
        self._refused = refused
        self._on_end = ended
        self._changed = threading.Condition()
        self._next: Capture | None = None
        self._busy = self._intent is not None
        self._ended = False
        self._delivery: Delivery | None = None
        self._warned: set[str] = set()
        self.sent: list[Sent] = []
        self._thread = threading.Thread(target=self._run, name="tunefleet-federation-upload", daemon=True)
        self._thread.start()

    def submit(self, capture: Capture) -> None:
        """Queue a capture; replaces one that is already waiting."""
        with self._changed:
            self._next = capture
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is in transit; returns False after the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._idle, timeout_s)
            return self._idle

    @property
    def _idle(self) -> bool:
        return not self._busy and self._next is None

    def close(self) -> None:
        """Give up the update in transit and end the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        if self._intent is not None:
            self._do(self._resend, self._intent)
        while (capture := self._take()) is not None:
            self._do(self._deliver, capture)
        self._on_end()

    def _do(self, act: Callable[[Any], object], what: Any) -> None:
        self._try(act, what)
        with self._changed:
            self._busy = False
            self._changed.notify_all()

    def _try(self, act: Callable[[Any], object], what: Any) -> None:
        try:
            act(what)
        except Superseded:
            logger.info("An update is dropped: a newer one includes its rows.")
        except NeverArrived:
            logger.info("An update of an earlier launch was not accepted; the next one includes its rows.")
        except SessionEnded:
            logger.debug("An update was in transit when training ended.")
        except Exception as error:  # top level of a thread: every error is reported to the training thread
            if not isinstance(error, TunefleetError):
                logger.exception("An update could not be sent.")
            self._refused(error)

    def _take(self) -> Capture | None:
        with self._changed:
            self._changed.wait_for(lambda: self._next is not None or self._ended)
            capture, self._next = self._next, None
            self._busy = capture is not None and not self._ended
            return capture if self._busy else None

    def _deliver(self, capture: Capture) -> None:
        rows_before = max(self._progress.taken, capture.given_up)
        num_examples = capture.rows - rows_before
        if num_examples <= 0:
            logger.info("Step %d was uploaded before; its rows are already counted.", capture.step)
            return
        packed = self._packer.pack(capture.values)
        try:
            digest, _ = hash_file(packed.file)
            body = UpdateCreate(
                worker=self._client.worker_id,
                attempt=self._client.attempt,
                rows_before=rows_before,
                step=capture.step,
                num_examples=num_examples,
                sha256=digest,
                config=self._config,
                base_version=capture.version,
                upload_dtype=self._packer.dtype,
                losses=capture.losses,
            )
            reply = self._settle(Intent(capture.rows, body), packed.file)
        finally:
            packed.file.unlink(missing_ok=True)
        self._write(lambda: self._packer.keep(packed, reply))

    def _resend(self, intent: Intent) -> None:
        """Resend an update that an earlier process was sending."""
        # With the number of this attempt: the server refuses updates of earlier ones.
        body = intent.body.model_copy(update={"attempt": self._client.attempt})
        self._settle(Intent(intent.rows, body), None)

    def _settle(self, intent: Intent, file: Path | None) -> UpdateTaken:
        """Send an update until there is an answer; it is saved first, in case this process is killed.

        Args:
            file: Its weights; None if they were lost with an earlier process.
        """
        if self._ended:
            raise SessionEnded
        noted = partial(self._taken.note, self._progress, intent)
        delivery = self._delivery = Delivery(self._client, intent.body, file, partial(self._write, noted))
        try:
            reply = self._retries.call(delivery.attempt)
        except _DECIDED:
            self._write(lambda: self._taken.note(self._progress))
            raise
        finally:
            self._delivery = None
        self._progress.taken, self._progress.taken_step = intent.rows, intent.body.step
        self.sent.append(Sent(intent.body.step, intent.body.num_examples, reply))
        self._log_reply(intent.body, reply)
        self._write(lambda: self._taken.note(self._progress))
        return reply

    def _write(self, do: Callable[[], None]) -> None:
        try:
            do()
        except OSError as error:
            # Not fatal: this process has the state in memory, and a later one has it from the checkpoint.
            logger.warning("The state of the federation could not be saved: %s", error)

    def _log_reply(self, body: UpdateCreate, reply: UpdateTaken) -> None:
        where = f"counts in round {reply.round}" if reply.counted else "does not count yet"
        logger.info("The update of step %d with %d rows %s.", body.step, body.num_examples, where)
        if reply.warning is not None and reply.warning not in self._warned:
            self._warned.add(reply.warning)
            logger.warning("Warning of the server about the update of step %d: %s", body.step, reply.warning)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._superseded, seconds)
            if self._ended:
                raise SessionEnded
            if self._superseded:
                raise Superseded

    @property
    def _superseded(self) -> bool:
        return self._next is not None and self._delivery is not None and self._delivery.may_be_left


def outgoing_folder(folder: Path) -> Path:
    """Return the folder for files waiting to be sent, emptied."""
    place = folder / "outgoing"
    place.mkdir(parents=True, exist_ok=True)
    for left in place.iterdir():
        left.unlink()
    return place


class NeverArrived(Exception):
    """An update of an earlier process cannot be delivered: its file is gone, or the server fails on it."""


# Errors after which an update was certainly not accepted. Not a refused key: an earlier try may have been accepted.
_DECIDED: Final = (InputError, GoneError, TooLargeError, NeverArrived)


class Delivery:
    """An update that is being sent: a small one in one request; after an interruption, the file first.

    Args:
        file: Its weights; None if they were lost with the process that was sending them.
        heard: Called once, before the server may learn of the update.
    """

    def __init__(
        self, client: FederatedClient, update: UpdateCreate, file: Path | None, heard: Callable[[], None]
    ) -> None:
        self._client = client
        self._update = update
        self._file = file
        self._heard = heard
        self._at_once = file is not None and file.stat().st_size <= AT_ONCE_BYTES
        self._faults = 0
        # Once true, the update must not be dropped: the server may have counted it.
        self._may_be_taken = file is None

    @property
    def may_be_left(self) -> bool:
        """Whether a newer update may replace it: the server cannot have accepted it, or fails on it every time."""
        return not self._may_be_taken or self._faults >= _FAULTS

    def attempt(self) -> UpdateTaken:
        """Send what the server does not have yet.

        Raises:
            TunefleetError: If the server refuses it or does not respond; it may be retried.
            NeverArrived: If neither side has its file, or the server fails on it every time.
        """
        try:
            return self._attempt()
        except UnreachableError:
            raise
        except TunefleetError as error:
            self._faults += is_retryable(error)
            if self._faults >= _FAULTS and self._file is None:
                raise NeverArrived from error
            raise

    def _attempt(self) -> UpdateTaken:
        if self._file is not None and self._at_once:
            self._at_once = False
            return self._client.give(self._file, self._update, heard=self._mark_announced)
        if self._may_be_taken:
            try:
                return self._client.announce(self._update)
            except ArtifactError as error:
                if self._file is None:
                    raise NeverArrived from error
            return self._client.give_rest(self._file, self._update)
        assert self._file is not None, "an update that cannot have been accepted is from this process"
        self._client.send(self._file)
        self._mark_announced()
        return self._client.announce(self._update)

    def _mark_announced(self) -> None:
        if not self._may_be_taken:
            self._may_be_taken = True
            self._heard()
