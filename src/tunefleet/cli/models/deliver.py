"""Deliver a task's result and files from the server to another receiver, through this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tunefleet.client import Client
from tunefleet.client.external.result_delivery import BucketDelivery, HttpDelivery, Receiver
from tunefleet.client.external.ssrf_guard import shown
from tunefleet.client.transfer import OnProgress
from tunefleet.errors import InputError
from tunefleet.runtime.secrets.resolver import Secrets
from tunefleet.schemas.api import TaskDetail
from tunefleet.schemas.compat.task_results import RESULT_NAMES, SINGLE_FILE, ResultEnvelope
from tunefleet.settings import SecretSettings, load, secret_variables
from tunefleet.spec.options.output import DestinationSpec

# The user may reach all that this machine can reach; metadata services stay blocked.
_ANYWHERE: Final = ("0.0.0.0/0", "::/0")


@dataclass(frozen=True, slots=True)
class Sent:
    """A delivery: its target and files."""

    task_id: str
    url: str
    files: tuple[str, ...]


def deliver(client: Client, task: str, *, to: str | None, headers: Iterable[str], on_progress: OnProgress) -> Sent:
    """Download result and files of a task from the server, and send them.

    Args:
        to: The URL; `None` for the destination in the task's spec.

    Raises:
        InputError: If there is no target or no result, or the receiver rejects it.
        UnreachableError: If the receiver does not respond.
    """
    detail = client.tasks.get(task)
    outward, where = _outward(detail, to, headers)
    files = {file.name: file for file in client.tasks.files(detail.id).files}
    result = next((files[name] for name in reversed(RESULT_NAMES) if name in files), None)
    if result is None:
        raise InputError(f"The server has no result of {detail.id}.", hint=f"The task is {detail.status}.")
    # The same selection as on the worker: artifacts that are a single file; of a trained folder, its archive.
    single = {made.name for made in client.artifacts.iterate(task_id=detail.id) if made.metadata.get(SINGLE_FILE)}
    sent = []
    # One file at a time: all of them may not fit on the disk.
    with tempfile.TemporaryDirectory(prefix="tunefleet-deliver-") as folder:
        for file in files.values():
            if file.name in single and file.name not in RESULT_NAMES:
                path = Path(folder, file.name)
                client.tasks.fetch_file(detail.id, file, path, on_progress=on_progress)
                outward.file(detail.id, path)
                path.unlink()
                sent.append(file.name)
        path = Path(folder, result.name)
        client.tasks.fetch_file(detail.id, result, path)
        outward.result(ResultEnvelope.model_validate_json(path.read_bytes()))
    return Sent(detail.id, where, tuple(sent))


def _outward(task: TaskDetail, to: str | None, headers: Iterable[str]) -> tuple[HttpDelivery | BucketDelivery, str]:
    """Return the sender and a readable target."""
    raw = (task.spec.get("output") or {}).get("destination") or {}
    wanted = DestinationSpec.model_validate(raw)
    url = to or wanted.url
    if url is None:
        raise InputError("The task has no destination.", hint="Set one with --to.")
    settings = load(SecretSettings)
    secrets = Secrets(secret_variables(), settings.secrets_dir, settings.secrets_limits)
    if to is None and wanted.type == "s3":
        if any(headers):
            raise InputError(
                "--header applies to URLs only; the task's destination is a bucket.", hint="Omit --header."
            )
        secrets.check({"output": {"destination": raw}}, task.kind, None)
        return BucketDelivery(*secrets.fill([url, wanted.access_key, wanted.secret_key])), url
    # Headers of the spec may hold credentials: they are sent to the URL of the spec only.
    known = {} if to is not None else dict(wanted.headers or {})
    given = dict(_header(text) for text in headers)
    address, sent = str(secrets.fill(url)), {**known, **given}
    secrets.check_sent([url, sent], address)
    receiver = Receiver(address, wanted.method, secrets.fill(sent), wanted.timeout_s)
    return HttpDelivery(receiver, allowed=_ANYWHERE), shown(address)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise InputError(f"{text!r} is not a header.", hint="Use 'NAME: VALUE'.")
    return name.strip(), value.strip()
