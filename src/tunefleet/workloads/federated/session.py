"""The connection of rank 0 to the server: client, upload thread, download thread, and their errors."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import ValidationError

from tunefleet.client.federation.client import FederatedClient
from tunefleet.client.federation.transfer import sweep
from tunefleet.errors import AuthError, ForbiddenError, GoneError, NotFoundError, TunefleetError
from tunefleet.federation.contract import Contract, check_config
from tunefleet.schemas.federated import FederationDetail
from tunefleet.spec.options.federation_options import FederationSpec
from tunefleet.workloads.federated.contact import Reachability, is_retryable
from tunefleet.workloads.federated.downloader import Arrived, Downloader, Inbox
from tunefleet.workloads.federated.live_adapter import LiveAdapter
from tunefleet.workloads.federated.options import Options
from tunefleet.workloads.federated.rank_sync import PULL, REFUSED, TAKEN, VERSION, Mailbox
from tunefleet.workloads.federated.state import Intent, Progress, TakenFile
from tunefleet.workloads.federated.update_compression import RESIDUAL, Packer
from tunefleet.workloads.federated.uploader import Capture, Sent, Uploader, outgoing_folder

logger = logging.getLogger("tunefleet.federation")

# Retry time of the client in one call; `RetryPolicy` repeats calls for as long as needed and can be ended.
_PATIENCE_S: Final = 2.0
# Versions in memory: one that all ranks are about to load, and the next one. A step may take hours.
_AHEAD: Final = 2
# Errors after which the session ends.
_FINAL: Final = (AuthError, ForbiddenError, NotFoundError, GoneError)


class FederationSession:
    """The session of a training run with the server.

    Args:
        checkpoint: The checkpoint that the run resumes from; None for a new run.
    """

    def __init__(
        self,
        options: Options,
        live: LiveAdapter,
        progress: Progress,
        mailbox: Mailbox,
        place: Path,
        checkpoint: Path | None,
    ) -> None:
        self._options = options
        self._live = live
        self._progress = progress
        self._mailbox = mailbox
        self._reachability = Reachability()
        self._joined = False
        self._running = 0
        self._lock = threading.Lock()
        self._faults: dict[str, Exception] = {}
        self.arrived: dict[int, Arrived] = {}
        self._client = FederatedClient(
            options.url,
            options.job_id,
            options.worker_id,
            options.token,
            patience_s=_PATIENCE_S,
            max_bytes_per_s=options.max_bytes_per_s,
            attempt=options.attempt,
        )
        place.mkdir(parents=True, exist_ok=True)
        sweep(place)
        self._taken = TakenFile(place, options.job_id, options.worker_id)
        self.packer = Packer(options.upload_dtype, outgoing_folder(place), place / RESIDUAL)
        self._intent: Intent | None = None
        if checkpoint is None:
            self._taken.forget()
            self.packer.forget()
        else:
            self._intent = self._taken.catch_up(progress)
            if progress.taken:
                self.packer.resume(checkpoint / RESIDUAL)
        self._inbox = Inbox(self._client, live, place, lambda: len(self.arrived) < _AHEAD)
        self._uploader: Uploader | None = None
        self._downloader: Downloader | None = None

    @property
    def sent(self) -> list[Sent]:
        """The updates that the server accepted."""
        return self._uploader.sent if self._uploader is not None else []

    def connect(self) -> dict[str, Any]:
        """Join the federation and download the newest version; an unreachable server is joined later.

        Returns:
            `id` of the federation if known, `version` if one was downloaded, `pull` if the federation uses FedProx,
            `refused` with the reason, and `taken`: up to which row of this run its updates are already counted.
        """
        named = self._options.job_id if not self._options.job_id.isdecimal() else None
        found: dict[str, Any] = {"id": named, "version": None, "pull": None, "refused": None}
        try:
            found["id"], found["pull"], rows = self._join_federation()
            self._progress.raise_taken(rows)
            newest = self._inbox.next(self._progress.version)
            if newest is not None:
                self.arrived[newest.version] = newest
                found["version"] = newest.version
        except TunefleetError as error:
            if is_retryable(error):
                self._reachability.lost(error)
            else:
                found["refused"] = self._log_refusal(error)
        return {**found, "taken": self._progress.taken}

    def start(self) -> None:
        """Start the upload and download threads."""
        config = self._live.described(self._options.base_model)
        self._running = 2
        self._uploader = Uploader(
            self._client,
            config,
            self.packer,
            self._progress,
            (self._taken, self._intent),
            self._reachability,
            refused=self._refused,
            ended=self._thread_ended,
        )
        self._downloader = Downloader(
            self._client,
            self._inbox,
            self._reachability,
            after=max(self._progress.version, *self.arrived, 0),
            first=self._join_late,
            arrived=self._pass_on,
            refused=self._refused,
            ended=self._thread_ended,
        )
        if self.stopped:
            self.close()

    def send(self, capture: Capture) -> None:
        """Send a capture in the background."""
        if self._uploader is not None:
            self._uploader.submit(capture)

    def finish(self, wait_s: float) -> None:
        """Stop downloading, and wait up to `wait_s` seconds until the last update is sent."""
        if self._downloader is not None:
            self._downloader.close()
        sent = self._uploader is None or self._uploader.drain(wait_s)
        if not sent and not self.stopped:
            rows = self._progress.rows - max(self._progress.taken, self._progress.given_up)
            logger.warning(
                "The last update, with %d rows, could not be sent within %.0f s. Resume the run to send them with the "
                "next update, or upload the saved adapter with tunefleet.FederatedClient.",
                rows,
                wait_s,
            )
        self.close()

    def close(self) -> None:
        """End the session; does not wait for the threads."""
        for each in (self._uploader, self._downloader):
            if each is not None:
                each.close()
        if self._uploader is None:
            self._client.close()  # otherwise the last thread to end closes it

    def join(self) -> None:
        """Wait briefly until the upload thread has ended."""
        # The download thread is not waited for: its long poll may take longer.
        if self._uploader is not None:
            self._uploader.join(2 * _PATIENCE_S)

    def fault(self, text: str) -> Exception | None:
        """Return the error with a message."""
        return self._faults.get(text)

    @property
    def stopped(self) -> bool:
        """Whether the server has ended the session with a final error."""
        return any(isinstance(error, _FINAL) for error in self._faults.values())

    def _thread_ended(self) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                self._client.close()

    def _join_federation(self) -> tuple[str, float | None, int]:
        """Join the federation.

        Returns:
            The federation's id, its FedProx `mu` unless the user set one, and up to which row of this run its updates
            are already counted.

        Raises:
            AdapterRefused: If the federation trains another base model, or adapters of another rank.
        """
        rows = self._client.join().rows_taken or 0
        detail = self._client.federation()
        self._check_config(detail)
        strategy = detail.spec.get("strategy") or {}
        self._joined = True
        if strategy.get("output") == "residual":
            logger.warning(
                "The versions of %s have a residual for the base model, which a reload ignores.", self._client.job_id
            )
        wanted = strategy.get("mu") if strategy.get("name") == "fedprox" else None
        return detail.id, None if self._options.mu is not None or wanted is None else float(wanted), rows

    def _check_config(self, detail: FederationDetail) -> None:
        config = self._live.config_for(self._options.base_model)
        try:
            contract = None if detail.contract is None else Contract.from_json(orjson.dumps(detail.contract))
            spec = FederationSpec.model_validate(detail.spec)
        except ValidationError as error:
            # The spec of a newer server, which checks uploads itself.
            logger.debug("The spec of the federation cannot be parsed by this version: %s", error)
            return
        check_config(spec, contract, config)

    def _join_late(self) -> None:
        if self._joined:
            return
        _, mu, rows = self._join_federation()
        if rows > self._progress.taken:
            # Sent to all ranks: none of them waits for a version at a step whose rows are already counted.
            self._mailbox.submit(TAKEN, {"rows": rows})
        if mu is not None:
            self._mailbox.submit(PULL, {"mu": mu})

    def _pass_on(self, found: Arrived) -> None:
        self.arrived[found.version] = found
        self._mailbox.submit(VERSION, {"version": found.version})

    def _refused(self, error: Exception) -> None:
        data = self._log_refusal(error)
        if data is not None:
            self._mailbox.submit(REFUSED, data)
        if self.stopped:
            self.close()

    def _log_refusal(self, error: Exception) -> dict[str, Any] | None:
        """Log a refusal; returns the message for the training thread, None if it was reported before."""
        over = isinstance(error, GoneError) and self._is_complete()
        text = f"Federation {self._options.job_id}{' has completed all rounds' if over else ''}: {error}"
        if text in self._faults:
            return None
        self._faults[text] = error
        logger.log(logging.WARNING if over else logging.ERROR, "%s", text)
        return {"text": text, "over": over}

    def _is_complete(self) -> bool:
        """Return whether a closed federation has completed all rounds, which is not a refusal."""
        try:
            return self._client.federation().status == "completed"
        except TunefleetError as error:
            logger.debug("The final status of the federation is unknown: %s", error)
            return False
