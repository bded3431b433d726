"""`FederatedClient`: one worker's end of a federation, for training loops that somebody wrote himself.

It needs no torch: adapters are folders as PEFT saves them, or named NumPy arrays. What is sent goes on where it broke,
is tried again while the server does not answer, and counts once however often it is sent. `FederatedCallback` does the
same for whoever has a Trainer, on top of this.
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
from tunefleet.federation.feedback import Feedback
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

# So long, at most, the server is asked to hold one answer.
_HELD_S: Final = 30.0


class _Changes(RootModel[dict[str, Any]]):
    """What a worker changes of what the server knows of it."""


class Fetched(NamedTuple):
    """A version that was fetched.

    Args:
        round: That made it; None for a rollback.
        folder: Where it lies, as PEFT loads it.
    """

    version: int
    round: int | None
    folder: Path


class FederatedClient:
    """One worker of one federation; may be shared between threads.

        with FederatedClient("http://server:8000", "fed-…", "lab-3", token) as federation:
            federation.upload("out/adapter", step=100, num_examples=1600)
            fetched = federation.fetch("inbox", after=0, wait_s=600)
            if fetched is not None:
                folder = fetched.folder

    Args:
        url: The server; `http://:TOKEN@host:8000` brings the token along.
        job_id: The federation: its id or its number.
        worker_id: What this worker calls itself; the same name again is the same worker.
        token: The federation's token, or any key that may take part; by default the one in the URL, then the key that
            is saved for that server.
        patience_s: How long a call is tried again while the server does not answer.
        max_bytes_per_s: Holds what is sent and fetched to a speed.
        attempt: How often this worker was begun, this time included: what an earlier one sends is refused once a later
            one has joined. Leave it out, and whoever has the name is the worker.

    Raises:
        InputError: If the URL is not one.
        AuthError: If no token is known.
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
        """Return the federation: its spec, contract, members and newest rounds.

        Raises:
            NotFoundError: If there is none of that id.
            AuthError: If the token is not good.
            UnreachableError: If the server does not answer.
        """
        return self._transport.run(get_federation(self.job_id))

    def join(self, *, callback_url: str | None = None) -> MemberView:
        """Make this worker known before its first upload; raises as `federation` does.

        Args:
            callback_url: Where the server posts that there is a new version; None leaves what was said before.
        """
        # What is not said stays as it was, so it must not be sent as null.
        said = {"callback_url": callback_url, "attempt": self.attempt}
        changes = _Changes({name: value for name, value in said.items() if value is not None})
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
        """Send an update: the weights as they are now, and how many rows they were trained on.

        Args:
            adapter: The folder that `save_pretrained` wrote, or arrays by name.
            step: This worker's optimizer step.
            num_examples: Rows trained on since the last upload; what the update weighs.
            config: The adapter's `adapter_config.json`; by default the one in the folder.
            base_version: The version that the training started from; 0 for none.
            upload_dtype: Send the weights as `fp32`, `bf16` or `int8`; by default as they are. What 8 bits round away
                is added to the next upload of this client.
            losses: On this worker's own data.

        Returns:
            Whether it counts, in which round; `warning` says why it does not.

        Raises:
            InputError: If the server refuses it, or there is no adapter there; the text says which tensor, and why.
            ConflictError: If the federation does not take updates now.
            AuthError: If the token is not good.
            UnreachableError: If the server does not answer within `patience_s`. Calling again goes on where it broke.
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
        """Send an update and its file in one request, and try it once; raises as `upload` does.

        Args:
            update: What they are.
            heard: Called before the last bytes go: before that the server cannot have taken it.
        """
        entry = FileEntry(path=file.name, digest=update.sha256, size_bytes=file.stat().st_size)
        return self._transport.run(ask(transfer.together(self.job_id, LocalFile(entry, file), update, heard=heard)))

    def give_rest(self, file: Path, update: UpdateCreate) -> UpdateTaken:
        """Send what the server lacks of an update whose `give` broke; raises as `upload` does.

        Args:
            update: What they are.
        """
        entry = FileEntry(path=file.name, digest=update.sha256, size_bytes=file.stat().st_size)
        patience_s = self._transport.policy.patience_s
        return self._transport.run(transfer.give_rest(self.job_id, LocalFile(entry, file), update, patience_s))

    def send(self, file: Path) -> str:
        """Send a file of weights, the first half of an update; what an earlier call got through is not sent again.

        Returns:
            Its sha256, which `announce` wants.

        Raises:
            UnreachableError: If the server does not answer within `patience_s`.
        """
        digest, size_bytes = hash_file(file)
        entry = FileEntry(path=file.name, digest=digest, size_bytes=size_bytes)
        self._transport.run(transfer.send(self.job_id, LocalFile(entry, file), self._transport.policy.patience_s))
        return digest

    def announce(self, update: UpdateCreate) -> UpdateTaken:
        """Say what a file is that was sent; said twice, it counts once. Raises as `upload` does."""
        return self._transport.run(transfer.announced(self.job_id, update))

    def newest(self, after: int = 0, *, wait_s: float = 0.0) -> VersionView | None:
        """Return the newest version of the global adapter, if it is newer than one.

        Args:
            after: That one; 0 takes any.
            wait_s: How long to wait for one.

        Raises:
            NotFoundError: If there is no such federation.
            AuthError: If the token is not good.
            UnreachableError: If the server does not answer.
        """
        until = time.monotonic() + wait_s
        while True:
            # In parts, since what lies between may not hold a connection open for long.
            left_s = max(until - time.monotonic(), 0.0)
            found = self._transport.run(newest_version(self.job_id, after=after, wait_s=min(left_s, _HELD_S)))
            if found is not None or left_s <= _HELD_S:
                return found

    def fetch(self, dest: Path | str, *, after: int = 0, wait_s: float = 0.0) -> Fetched | None:
        """Wait for a version that is newer than one and fetch it, in one request; one that breaks is fetched again.

        Args:
            dest: The folder to put it into.
            after: That one; 0 takes any.
            wait_s: How long to wait for one.

        Returns:
            The version, in a folder as `download` makes it; None if none came.

        Raises:
            NotFoundError: If there is no such federation.
            AuthError: If the token is not good.
            ArtifactError: If what arrives does not have its digest.
            UnreachableError: If the server does not answer.
        """
        into = Path(dest).expanduser()
        into.mkdir(parents=True, exist_ok=True)
        part = transfer.part_in(into)
        until = time.monotonic() + wait_s
        try:
            while True:
                told: dict[str, str] = {}
                left_s = max(until - time.monotonic(), 0.0)
                held_s = min(left_s, _HELD_S)
                flow = transfer.fetch_newest(self.job_id, after, held_s, part, told)
                try:
                    self._transport.run(flow)
                except UnreachableError:
                    # Apart it is waited for as long as the server is away, and goes on where it breaks.
                    found = self.newest(after, wait_s=left_s)
                    return None if found is None else Fetched(found.version, found.round, self.download(found, into))
                if "version" in told:
                    return self._unpacked(told, part, into)
                if left_s <= _HELD_S:
                    return None
        finally:
            part.unlink(missing_ok=True)

    def _unpacked(self, told: Mapping[str, str], part: Path, into: Path) -> Fetched:
        number, config = int(told["version"]), told["config-digest"]
        if config not in self._configs:
            where = path("federations", self.job_id, "versions", str(number), "config")
            self._configs = {config: self._transport.run(Call("GET", where, model(dict[str, Any])))}
        folder = into / f"version-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(part, folder / ADAPTER_FILE)
        with replacing(folder / CONFIG_FILE) as config_part:
            config_part.write_text(json.dumps(self._configs[config], indent=2))
        return Fetched(number, int(told["round"]) if "round" in told else None, folder)

    def version(self, number: int) -> VersionDetail:
        """Return a version with who gave what to it; raises `NotFoundError` if there is none of that number."""
        return self._transport.run(get_version(self.job_id, number))

    def download(self, version: VersionView, dest: Path | str) -> Path:
        """Fetch a version, and go on where an earlier call was cut.

        Args:
            version: As `newest` gives it.
            dest: The folder to put it into.

        Returns:
            A folder in it, as PEFT loads one: `version-3/adapter_model.safetensors` and `adapter_config.json`.

        Raises:
            ArtifactError: If what arrives does not have its digest.
            UnreachableError: If the server does not answer.
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
