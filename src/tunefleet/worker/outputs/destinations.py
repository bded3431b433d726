"""Delivery of results to the destination of a spec, in addition to the server: a URL, a bucket, or a folder.

A failed delivery is retried without computing the results again. The server has them by then, so that they can also be
delivered later with `tunefleet artifacts deliver`.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, stop_after_delay
from tenacity.wait import wait_exponential

from tunefleet.client.external.interrupt import CancelToken
from tunefleet.client.external.result_delivery import BucketDelivery, HttpDelivery, Receiver
from tunefleet.client.external.ssrf_guard import SsrfGuard, origin_of, same_server, shown
from tunefleet.errors import (
    ForbiddenError,
    InputError,
    NotFoundError,
    TooLargeError,
    TunefleetError,
    UnreachableError,
)
from tunefleet.runtime.secrets import Secrets
from tunefleet.schemas.worker_guide import ResultEnvelope
from tunefleet.spec.options.output import DestinationSpec
from tunefleet.worker.transfers import Transfers

logger = logging.getLogger(__name__)

_KEY: Final = "spec.output.destination"
_LONGEST_PAUSE_S: Final = 300.0
_PATIENT_PAUSE_S: Final = 2.0
_PLACEHOLDER: Final = "${secret:"
_DRAFT: Final = ".delivering-"
# Internal files of the worker.
_NOT_COPIED: Final = frozenset(
    {"job.json", "lock", "process.json", "finish.json", "shipped.json", "imported_checkpoint"}
)


def silent(_: str | None) -> None:
    """Report nothing."""


class DeliveryError(TunefleetError):
    """A result could not be delivered to the destination in its spec."""

    code = "delivery_failed"


class Destination:
    """The destination of one task.

    Args:
        held_up: Called with the reason of a retry, without secrets, and with None after a success.
    """

    def __init__(
        self,
        task_id: str,
        output: Mapping[str, Any],
        transfers: Transfers,
        secrets: Secrets,
        sleep: Callable[[float], None],
        held_up: Callable[[str | None], None] = silent,
        *,
        project: str | None = None,
    ) -> None:
        raw: dict[str, Any] = dict(output.get("destination") or {})
        self._task_id = task_id
        self._spec = DestinationSpec.model_validate(raw)
        self._transfers = transfers
        self._secrets = secrets
        self._hidden = secrets.redaction(raw)
        self._sleep = sleep
        self._held_up = held_up
        self._project = project

    def check(self, root: Path | None = None) -> None:
        """Reject a folder or URL that is not allowed, before anything is computed.

        Raises:
            InputError: If it is not allowed.
            MachineError: If the results go to a bucket, and the package for that is not installed.
        """
        url = self.foreign
        if self._spec.type == "s3":
            self._bucket()
        elif url is not None:
            try:
                SsrfGuard(self._transfers.url_allow).check_url(url)
            except ForbiddenError as error:
                # Not chained: the traceback would show the resolved host, which may contain a secret.
                raise InputError(f"{_KEY}.url: {self._quiet(error, url)}", hint=error.hint) from None
            except UnreachableError as error:
                # Not an error yet: the host may be reachable once there is something to deliver.
                logger.info("Destination of %s not reachable yet: %s", self._task_id, self._quiet(error, url))
        self.check_folder(root)

    def check_folder(self, root: Path | None = None) -> None:
        """Reject a folder that is not allowed, as `check` does; does not resolve the URL."""
        folder = self.folder
        if folder is None:
            return
        target = self._transfers.writable(folder, self._project, f"{_KEY}.path")
        own = target if root is None else root.resolve()
        if target != own and (target.is_relative_to(own) or own.is_relative_to(target)):
            # The copy would contain the previous copy, or replace its own source.
            raise InputError(
                f"{_KEY}.path: cannot copy the results of {self._task_id} to {folder}, since its job folder is {root}.",
                hint="Set a folder outside of it.",
            )

    @property
    def folder(self) -> Path | None:
        """The folder for a copy of the results; None if none is set."""
        path = self._spec.path
        if path is None:
            return None
        base = self._transfers.folders[0] if self._transfers.folders else Path()
        return base / path / self._task_id  # `/` ignores the base if the path is absolute

    @property
    def foreign(self) -> str | None:
        """URL or bucket of a third-party receiver; None if there is none."""
        url = self._spec.url
        if url is None or self._spec.type == "local":
            return None
        filled = str(self._secrets.fill(url))
        return None if same_server(filled, self._transfers.server_url) else filled

    def deliver(self, envelope: ResultEnvelope, files: Iterable[Path], stop: CancelToken | None = None) -> None:
        """Send result and files to the third-party receiver, if there is one, with retries.

        Raises:
            DeliveryError: If it is rejected, or the retries are exhausted.
            Stopped: If the delivery is no longer wanted.
        """
        url, outward = self.foreign, self._outward(stop)
        if url is None or outward is None:
            return
        for path in files:
            self._tried(lambda path=path: outward.file(self._task_id, path), path.name, url)  # type: ignore[misc]
        self._tried(lambda: outward.result(envelope), "the result", url)
        logger.info("Delivered the result of task %s to %s.", self._task_id, self._written)

    def _outward(self, stop: CancelToken | None) -> HttpDelivery | BucketDelivery | None:
        """Return the sender; None if results go to this server only."""
        url = self.foreign
        if url is None:
            return None
        if self._spec.type == "s3":
            return self._bucket(stop)
        headers = dict(self._secrets.fill(self._spec.headers or {}))
        receiver = Receiver(url, self._spec.method, headers, self._spec.timeout_s)
        return HttpDelivery(receiver, allowed=self._transfers.url_allow, throttle=self._transfers.throttle, stop=stop)

    def _bucket(self, stop: CancelToken | None = None) -> BucketDelivery:
        written = [self._spec.url, self._spec.access_key, self._spec.secret_key]
        return BucketDelivery(*self._secrets.fill(written), throttle=self._transfers.throttle, stop=stop)

    @property
    def _written(self) -> str:
        """The URL as it is written in the spec, with the names of secrets in it."""
        return shown(self._spec.url or "")

    def _quiet(self, error: BaseException, url: str) -> str:
        """Return an error message with the URL as it is written in the spec, so that it reveals no secret."""
        pieces = _message(error).split(shown(url))
        written = self._written.partition("://")[2].partition("/")[0]
        host = origin_of(url)[1]
        if host and _PLACEHOLDER in written:
            # Hosts are resolved in lowercase, and a host may be only the beginning of a secret.
            looked_up = re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", re.IGNORECASE)
            pieces = [looked_up.sub(lambda _: written, piece) for piece in pieces]
        return self._hidden.text(self._written.join(pieces))

    def _tried(self, act: Callable[[], None], what: str, url: str) -> None:
        patience = stop_after_delay(self._transfers.patience_s), _PATIENT_PAUSE_S
        tries = self._spec.retries
        stop, pause_s = patience if tries is None else (stop_after_attempt(1 + tries), self._spec.retry_backoff_s)

        def say(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome is not None else None
            if error is not None:
                # The cause comes first, since the outbox truncates long messages.
                message = f"{self._quiet(error, url)} Delivery of {what} is retried."
                logger.warning("Task %s: %s", self._task_id, message)
                self._held_up(message)

        try:
            Retrying(
                retry=retry_if_exception_type(UnreachableError),
                wait=wait_exponential(multiplier=pause_s, max=_LONGEST_PAUSE_S),
                stop=stop,
                sleep=self._sleep,
                before_sleep=say,
                reraise=True,
            )(act)
        except (UnreachableError, InputError, ForbiddenError, NotFoundError, TooLargeError, OSError) as error:
            raise DeliveryError(
                f"Could not deliver {what} of {self._task_id}: {self._quiet(error, url)}",
                hint=f"The server has everything; send it again with `tunefleet artifacts deliver {self._task_id}`.",
            ) from None
        self._held_up(None)

    def copy(self, root: Path) -> None:
        """Copy the results into the folder of the spec, if it has one; hard-links files where possible.

        Raises:
            DeliveryError: If the folder cannot be written.
        """
        target = self.folder
        if target is None or target.resolve() == root.resolve():
            return
        self.check_folder(root)
        draft = target.with_name(f"{_DRAFT}{target.name}")
        try:
            shutil.rmtree(draft, ignore_errors=True)
            draft.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(root, draft, copy_function=_link, ignore=_private)
            if target.exists():
                shutil.rmtree(target)
            # Renamed only once complete: other processes may read the folder.
            draft.rename(target)
        except OSError as error:
            raise DeliveryError(
                f"Cannot copy the results to {target}: {error.strerror or error}.",
                hint="Fix the folder's permissions or free space; the server has everything.",
            ) from error


def _message(error: BaseException) -> str:
    return error.message if isinstance(error, TunefleetError) else str(error)


def is_private(name: str) -> bool:
    """Whether a file of a job folder is internal to the worker, and never copied or delivered."""
    return name.startswith(".") or name in _NOT_COPIED


def _private(_: str, names: list[str]) -> set[str]:
    return {name for name in names if is_private(name)}


def _link(source: str, target: str) -> str:
    """Hard-link an immutable file, or copy it where the file system has no links."""
    # These may still be rewritten or appended to, and a link would change with them.
    if not source.endswith((".json", ".jsonl", ".log")):
        try:
            os.link(source, target)
        except OSError:
            logger.debug("Copying %s: a hard link is not possible.", source)
        else:
            return target
    return str(shutil.copy2(source, target))
