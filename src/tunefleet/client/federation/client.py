"""`FederatedClient`: one worker's end of a federation, for custom training loops.

It needs no torch: adapters are folders as PEFT saves them, or named NumPy arrays. Transfers resume after an
interruption, are retried while the server does not respond, and count once however often they are sent.
`FederatedCallback` does the same for Hugging Face's Trainer, on top of this client.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
from pydantic import RootModel

from tunefleet.artifacts import LocalFile, hash_file, replace_file, replacing
from tunefleet.client.call import Call, ask, model, path
from tunefleet.client.connection import Connection, normalise, resolve
from tunefleet.client.federation import transfer
from tunefleet.client.federation.payload import Adapter, material
from tunefleet.client.routes.federation_routes import get_federation, get_version, newest_version
from tunefleet.client.throttle import Throttle
from tunefleet.client.transport import Policy, Transport
from tunefleet.errors import UnreachableError
from tunefleet.federation.quantize import Feedback
from tunefleet.schemas.api import FileEntry
from tunefleet.schemas.federated import (
    ADAPTER_FILE,
    CONFIG_FILE,
    FederationDetail,
    Losses,
    MemberView,
    UpdateCreate,
    UpdateTaken,
    UploadDtype,
    VersionDetail,
    VersionView,
)

# Longest long poll.
_HELD_S: Final = 30.0


class _Changes(RootModel[dict[str, Any]]):
    """Changed fields of a member."""


class Fetched(NamedTuple):
    """A downloaded version.

    Args:
        round: Round that produced it; `None` for a rollback.
        folder: Its folder, in PEFT's format.
    """

    version: int
    round: int | None
    folder: Path


class FederatedClient:
    """One worker of one federation; thread-safe.

        with FederatedClient("http://server:8000", "fed-…", "lab-3", token) as federation:
            federation.upload("out/adapter", step=100, num_examples=1600)
            fetched = federation.fetch("inbox", after=0, wait_s=600)
            if fetched is not None:
                folder = fetched.folder

    Args:
        url: The server; `http://:TOKEN@host:8000` includes the token.
        job_id: Id or number of the federation.
        worker_id: Name of this worker; the same name means the same worker.
        token: The federation's token, or an API key that may take part. Default: the one in the URL, then the saved key
            of that server.
        patience_s: Seconds to retry a call while the server does not respond.
        max_bytes_per_s: Limits the transfer rate.
        attempt: Number of this start of the worker: once a later start has joined, uploads of earlier ones are refused.
            Without it, any client with the name acts as the worker.

    Raises:
        InputError: If the URL is invalid.
        AuthError: If there is no token.
    """

    def __init__(
        self,
        url: str,
        job_id: str | int,
        worker_id: str | int,
        token: str | None = None,
        *,
        patience_s: float = 600.0,
        max_bytes_per_s: float | None = None,
        attempt: int | None = None,
    ) -> None:
        self.job_id = str(job_id)
        self.worker_id = str(worker_id)
        self.attempt = attempt
        throttle = Throttle(max_bytes_per_s) if max_bytes_per_s else None
        self._feedback = Feedback()
        self._configs: dict[str, dict[str, Any]] = {}
        self._transport = Transport(_connection(url, token), Policy(patience_s=patience_s), throttle=throttle)

    def __enter__(self) -> FederatedClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    @property
    def url(self) -> str:
        """The server, without a token."""
        return self._transport.connection.url

    def federation(self) -> FederationDetail:
        """Return the federation: its spec, contract, members and latest rounds.

        Raises:
            NotFoundError: If it does not exist.
            AuthError: If the token is invalid.
            UnreachableError: If the server does not respond.
        """
        return self._transport.run(get_federation(self.job_id))

    def join(self, *, callback_url: str | None = None) -> MemberView:
        """Register this worker before its first upload; raises as `federation` does.

        Args:
            callback_url: Receives a POST for each new version; `None` keeps the current one.
        """
        # Omitted fields stay unchanged, so `None` must not be sent as null.
        fields = {"callback_url": callback_url, "attempt": self.attempt}
        changes = _Changes({name: value for name, value in fields.items() if value is not None})
        where = path("federations", self.job_id, "members", self.worker_id)
        return self._transport.run(Call("PUT", where, model(MemberView), body=changes))

    def upload(
        self,
        adapter: Adapter,
        *,
        step: int,
        num_examples: int,
        config: Mapping[str, Any] | None = None,
        base_version: int | None = None,
        upload_dtype: UploadDtype | None = None,
        losses: Losses | None = None,
    ) -> UpdateTaken:
        """Send an update: the current weights, and the number of rows that they were trained on.

        Args:
            adapter: The folder that `save_pretrained` wrote, or arrays by name.
            step: This worker's optimizer step.
            num_examples: Rows trained on since the last upload; the weight of the update.
            config: The adapter's `adapter_config.json`. Default: the one in the folder.
            base_version: The version that this training started from; 0 for none.
            upload_dtype: Send the weights as `fp32`, `bf16` or `int8`; by default unchanged. The rounding error of
                `int8` is added to this client's next upload.
            losses: Losses on this worker's own data.

        Returns:
            Whether it counts, and in which round; `warning` explains why it does not.

        Raises:
            InputError: If the server rejects it, or there is no adapter; the message names the tensor and the reason.
            ConflictError: If the federation accepts no updates now.
            AuthError: If the token is invalid.
            UnreachableError: If the server does not respond within `patience_s`. Calling again resumes the upload.
        """
        with tempfile.TemporaryDirectory(prefix="tunefleet-update-") as scratch:
            made = material(adapter, config, upload_dtype, Path(scratch), self._feedback.residual)
            digest, size_bytes = hash_file(made.file)
            body = UpdateCreate(
                worker=self.worker_id,
                attempt=self.attempt,
                step=step,
                num_examples=num_examples,
                sha256=digest,
                config=made.config,
                base_version=base_version,
                upload_dtype=made.dtype,
                losses=losses or Losses(),
            )
            file = LocalFile(FileEntry(path=made.file.name, digest=digest, size_bytes=size_bytes), made.file)
            patience_s = self._transport.policy.patience_s
            taken = self._transport.run(transfer.give(self.job_id, file, body, patience_s))
        if taken.will_count:
            self._feedback = self._feedback.after(made.rounding, taken.id, taken.replaces)
        return taken

    def give(self, file: Path, update: UpdateCreate, *, heard: Callable[[], None]) -> UpdateTaken:
        """Send an update and its file in one request, without retries; raises as `upload` does.

        Args:
            update: The update's metadata.
            heard: Called before the last bytes are sent; until then the server cannot have accepted it.
        """
        entry = FileEntry(path=file.name, digest=update.sha256, size_bytes=file.stat().st_size)
        return self._transport.run(ask(transfer.together(self.job_id, LocalFile(entry, file), update, heard=heard)))

    def give_rest(self, file: Path, update: UpdateCreate) -> UpdateTaken:
        """Send the missing part of an update whose `give` was interrupted; raises as `upload` does.

        Args:
            update: The update's metadata.
        """
        entry = FileEntry(path=file.name, digest=update.sha256, size_bytes=file.stat().st_size)
        patience_s = self._transport.policy.patience_s
        return self._transport.run(transfer.give_rest(self.job_id, LocalFile(entry, file), update, patience_s))

    def send(self, file: Path) -> str:
        """Upload a file of weights, the first half of an update; resumes an earlier upload.

        Returns:
            Its SHA-256, for `announce`.

        Raises:
            UnreachableError: If the server does not respond within `patience_s`.
        """
        digest, size_bytes = hash_file(file)
        entry = FileEntry(path=file.name, digest=digest, size_bytes=size_bytes)
        self._transport.run(transfer.send(self.job_id, LocalFile(entry, file), self._transport.policy.patience_s))
        return digest

    def announce(self, update: UpdateCreate) -> UpdateTaken:
        """Submit the metadata of an uploaded file; repeated calls count once. Raises as `upload` does."""
        return self._transport.run(transfer.announced(self.job_id, update))

    def newest(self, after: int = 0, *, wait_s: float = 0.0) -> VersionView | None:
        """Return the newest version of the global adapter if it is newer than `after`.

        Args:
            after: The version that you have; 0 for none.
            wait_s: How long to wait for a newer one.

        Raises:
            NotFoundError: If the federation does not exist.
            AuthError: If the token is invalid.
            UnreachableError: If the server does not respond.
        """
        until = time.monotonic() + wait_s
        while True:
            # In several polls: proxies in between may not hold a connection open for long.
            left_s = max(until - time.monotonic(), 0.0)
            found = self._transport.run(newest_version(self.job_id, after=after, wait_s=min(left_s, _HELD_S)))
            if found is not None or left_s <= _HELD_S:
                return found

    def fetch(self, dest: Path | str, *, after: int = 0, wait_s: float = 0.0) -> Fetched | None:
        """Wait for a version newer than `after` and download it in one request; resumes after an interruption.

        Args:
            dest: Target folder.
            after: The version that you have; 0 for none.
            wait_s: How long to wait for a newer one.

        Returns:
            The version, in a folder like that of `download`; `None` if there is no newer one.

        Raises:
            NotFoundError: If the federation does not exist.
            AuthError: If the token is invalid.
            ArtifactError: If the download does not match its digest.
            UnreachableError: If the server does not respond.
        """
        into = Path(dest).expanduser()
        into.mkdir(parents=True, exist_ok=True)
        part = transfer.part_in(into)
        until = time.monotonic() + wait_s
        try:
            while True:
                response_headers: dict[str, str] = {}
                left_s = max(until - time.monotonic(), 0.0)
                held_s = min(left_s, _HELD_S)
                flow = transfer.fetch_newest(self.job_id, after, held_s, part, response_headers)
                try:
                    self._transport.run(flow)
                except UnreachableError:
                    # The separate calls retry while the server is down, and resume an interrupted download.
                    found = self.newest(after, wait_s=left_s)
                    return None if found is None else Fetched(found.version, found.round, self.download(found, into))
                if "version" in response_headers:
                    return self._unpacked(response_headers, part, into)
                if left_s <= _HELD_S:
                    return None
        finally:
            part.unlink(missing_ok=True)

    def _unpacked(self, response_headers: Mapping[str, str], part: Path, into: Path) -> Fetched:
        number, config = int(response_headers["version"]), response_headers["config-digest"]
        if config not in self._configs:
            where = path("federations", self.job_id, "versions", str(number), "config")
            self._configs = {config: self._transport.run(Call("GET", where, model(dict[str, Any])))}
        folder = into / f"version-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(part, folder / ADAPTER_FILE)
        with replacing(folder / CONFIG_FILE) as config_part:
            config_part.write_text(json.dumps(self._configs[config], indent=2))
        return Fetched(number, int(response_headers["round"]) if "round" in response_headers else None, folder)

    def version(self, number: int) -> VersionDetail:
        """Return a version with its contributions; raises `NotFoundError` if it does not exist."""
        return self._transport.run(get_version(self.job_id, number))

    def download(self, version: VersionView, dest: Path | str) -> Path:
        """Download a version, resuming an earlier download.

        Args:
            version: The version, as `newest` returns it.
            dest: Target folder.

        Returns:
            A subfolder in PEFT's format: `version-3/adapter_model.safetensors` and `adapter_config.json`.

        Raises:
            ArtifactError: If the download does not match its digest.
            UnreachableError: If the server does not respond.
        """
        folder = Path(dest).expanduser() / f"version-{version.version}"
        folder.mkdir(parents=True, exist_ok=True)
        where = ("federations", self.job_id, "versions", str(version.version))
        config = self._transport.run(Call("GET", path(*where, "config"), model(dict[str, Any])))
        entry = FileEntry(path=ADAPTER_FILE, digest=version.sha256, size_bytes=version.size_bytes)
        self._transport.run(transfer.fetch(path(*where, "adapter"), entry, folder / ADAPTER_FILE))
        with replacing(folder / CONFIG_FILE) as part:
            part.write_text(json.dumps(config, indent=2))
        return folder


def _connection(url: str, token: str | None) -> Connection:
    base = normalise(url)
    given = httpx.URL(url if "://" in url else f"http://{url}")
    secret = token or given.password or given.username or None
    return Connection(base, secret) if secret else resolve(base)
