"""Uploads checkpoints during training, so that another worker can resume from them.

Uploads the newest complete checkpoint and the best one, on connections of their own, one at a time. A checkpoint being
uploaded is listed in `keep.json`, so that the trainer neither deletes nor compresses it. If it changes all the same,
the partial upload is discarded and the current state is uploaded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tunefleet.errors import (
    ArtifactError,
    AuthError,
    ConflictError,
    ForbiddenError,
    InputError,
    NotFoundError,
    TooLargeError,
    TunefleetError,
    UnreachableError,
)
from tunefleet.schemas.job_folder import JobFolder, Keep
from tunefleet.schemas.worker_link import Offer
from tunefleet.trainer_control.checkpoints.manifest import MANIFEST, Checkpoint, digest_of, list_complete
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.worker.interfaces import Delivery, DeliveryFactory
from tunefleet.worker.mailbox import Mailbox

logger = logging.getLogger(__name__)

KIND: Final = "checkpoint"
_LOOK_S: Final = 1.0
_LONGEST_S: Final = 60.0
# Errors that a retry does not fix.
_LASTING: Final = (ArtifactError, AuthError, ForbiddenError, InputError, NotFoundError, TooLargeError, ConflictError)


class CheckpointUploads:
    """The uploads of one attempt."""

    def __init__(self, offer: Offer, folder: JobFolder, delivery: DeliveryFactory, mailbox: Mailbox) -> None:
        self._offer = offer
        self._folder = folder
        self._connect = delivery
        self._mailbox = mailbox
        self._wanted = bool((offer.spec.get("checkpoint") or {}).get("upload", True))
        self._sent: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._over = threading.Event()
        self._delivery: Delivery | None = None
        self._thread = threading.Thread(target=self._run, name=f"upload-{offer.task_id}", daemon=True)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Upload in the background while the body runs; an upload in progress at its end is aborted."""
        if not self._wanted:
            yield
            return
        self._thread.start()
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """Abort the upload in progress; the server keeps the files that have arrived."""
        self._over.set()
        # Closing the connection interrupts a request that may take minutes.
        if self._delivery is not None:
            self._delivery.close()
        if self._thread.is_alive():
            self._thread.join()
        self._protect(())

    def upload_newest(
        self, unwanted: Callable[[], bool] = lambda: False, held_up: Callable[[str | None], None] = lambda _: None
    ) -> None:
        """Upload the newest complete checkpoint of a paused job, so that it can resume elsewhere.

        Args:
            unwanted: Whether the task has been cancelled.
            held_up: Called with the reason of a retry, and with None at the end.
        """
        if not self._wanted:
            return
        self.stop()
        self._over.clear()
        delivery = self._connect(self._offer.token)

        def push(checkpoint: Checkpoint, about: dict[str, Any]) -> None:
            try:
                self._push(delivery, checkpoint, about)
            except UnreachableError as error:
                held_up(f"{error.message} Upload of {checkpoint.path.name} is retried.")
                raise

        try:
            while todo := self._next():
                self._mailbox.with_retries(lambda item=todo[0]: push(*item), unwanted=unwanted)  # type: ignore[misc]
        finally:
            held_up(None)
            delivery.close()

    def _run(self) -> None:
        pause_s = _LOOK_S
        while not self._over.wait(pause_s):
            began = time.monotonic()
            try:
                self._once()
            except TunefleetError as error:
                logger.debug("Could not upload a checkpoint of %s, retrying: %s", self._offer.task_id, error)
            except Exception:
                if self._over.is_set():
                    return  # `stop` has closed its connection
                logger.exception("Uploading a checkpoint of %s failed, retrying.", self._offer.task_id)
            # Pause as long as the upload took: journal and log share the connection's bandwidth and come first.
            pause_s = min(max(_LOOK_S, time.monotonic() - began), _LONGEST_S)

    def _once(self) -> None:
        todo = self._next()
        if not todo:
            return
        self._delivery = self._connect(self._offer.token)
        try:
            if not self._over.is_set():
                self._push(self._delivery, *todo[0])
        finally:
            self._delivery.close()

    def _next(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """Return the checkpoints to upload, the newest first."""
        whole = list_complete(self._folder.checkpoints_dir)
        if not whole:
            return []
        newest, best = whole[-1], _best_of(whole[-1].path)
        wanted = [newest, *(item for item in whole[:-1] if item.path.name == best)]
        known = (self._sent, self._refused)
        fresh = [item for item in wanted if all(notes.get(item.path.name) != _saved_as(item) for notes in known)]
        return [(item, _about(item, best=item.path.name == best)) for item in fresh]

    def _push(self, delivery: Delivery, checkpoint: Checkpoint, about: dict[str, Any]) -> None:
        name = checkpoint.path.name
        self._protect((name,))
        saved = _saved_as(checkpoint)
        try:
            expected = _files_of(checkpoint)
            delivery.push_artifact(self._offer.task_id, name, KIND, checkpoint.path, about, expected)
        except (OSError, *_LASTING) as error:
            # The trainer may have deleted or compressed it: the next round uploads its current state.
            changing = isinstance(error, OSError | NotFoundError | ArtifactError)
            if changing and _digest_now(checkpoint) != checkpoint.digest:
                logger.debug("%s was deleted or compressed before it was uploaded.", name)
                return
            self._refused[name] = saved
            logger.warning("Not uploading %s of task %s: %s", name, self._offer.task_id, error)
        except UnreachableError:
            raise
        except TunefleetError as error:
            raise UnreachableError(f"The server cannot store {name} now: {error}") from error
        else:
            self._sent[name] = saved
            logger.info("Uploaded %s of task %s.", name, self._offer.task_id)
        finally:
            self._protect(())

    def _protect(self, names: tuple[str, ...]) -> None:
        before = read_json(self._folder.keep_json)
        try:
            keep = Keep.model_validate(before or {})
        except ValidationError:
            keep = Keep()
        if keep.uploading == names:
            return
        try:
            write_json(self._folder.keep_json, keep.model_copy(update={"uploading": names}).model_dump(mode="json"))
        except OSError as error:
            path = self._folder.keep_json
            logger.warning("Cannot write %s; a checkpoint may be deleted while it is uploaded: %s", path, error)


def _files_of(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the current digests of a checkpoint's files and of its manifest."""
    text = (checkpoint.path / MANIFEST).read_bytes()
    files = json.loads(text)["files"]
    if digest_of(files) != checkpoint.digest:
        raise ArtifactError(f"{checkpoint.path.name} has changed.")
    return {**{file["path"]: file["digest"] for file in files}, MANIFEST: hashlib.sha256(text).hexdigest()}


def _digest_now(checkpoint: Checkpoint) -> object:
    return (read_json(checkpoint.path / MANIFEST) or {}).get("digest")


def _saved_as(checkpoint: Checkpoint) -> str:
    """Return the digest of a checkpoint at the time of saving; compression does not change it."""
    manifest = read_json(checkpoint.path / MANIFEST) or {}
    return str(manifest.get("saved_digest", checkpoint.digest))


def _best_of(newest: Path) -> str | None:
    """Return the name of the best checkpoint, from the state of the newest one."""
    best = _state(newest).get("best_model_checkpoint")
    return Path(str(best)).name if best else None


def _about(checkpoint: Checkpoint, *, best: bool) -> dict[str, Any]:
    manifest = read_json(checkpoint.path / MANIFEST) or {}
    history = _state(checkpoint.path).get("log_history") or []
    losses = [entry["eval_loss"] for entry in history if "eval_loss" in entry and entry.get("step") == checkpoint.step]
    about = {"step": checkpoint.step, "digest": checkpoint.digest, "best": best, "saved_at": manifest.get("at")}
    return {**about, "eval_loss": losses[-1]} if losses else about


def _state(folder: Path) -> dict[str, Any]:
    try:
        state = json.loads((folder / "trainer_state.json").read_bytes())
    except (OSError, ValueError):
        return {}  # a checkpoint of another framework, or just deleted
    return state if isinstance(state, dict) else {}
