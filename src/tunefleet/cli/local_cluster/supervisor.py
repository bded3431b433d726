"""A fleet on this machine: one server and its workers as child processes, kept alive as long as the parent lives.

    <data>/up.lock, up.json    the parent that has this folder, and its children
    <data>/logs/               output of server and workers
    <data>/results/            the worker's results folder (results-2, … for further workers)

The children end when the parent is killed; trainings go on, and the next fleet on the folder adopts them.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil
from filelock import FileLock, Timeout
from pydantic import SecretStr

from tunefleet.certificate import Facts, opened
from tunefleet.cli.local_cluster.process import Child
from tunefleet.client import Client, trust
from tunefleet.client.connection import ClientFile, Connection, read_client_file, write_client_file
from tunefleet.errors import InputError, MachineError, TunefleetError, UnreachableError
from tunefleet.runtime.environment import core_count
from tunefleet.settings import (
    SECRET_PREFIX,
    ClientSettings,
    ServerSettings,
    WorkerSettings,
    cloud_variables,
    inherited_environment,
    load,
    secret_variables,
)
from tunefleet.worker.state import StateFolder

logger = logging.getLogger(__name__)

_READY_S: Final = 60.0
_WATCH_S: Final = 0.1
_LOOK_S: Final = 0.2
_SERVER_STOP_S: Final = 20.0
_WORKER_STOP_S: Final = 90.0
_HEED_S: Final = 20.0
_ORPHANS_S: Final = 10.0


class LocalFleet:
    """A server with workers on this machine; a context manager."""

    def __init__(
        self,
        data: Path | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
        workers: int = 1,
        environment: Mapping[str, str] | None = None,
        save_client: bool = True,
        adopt_files: bool = False,
    ) -> None:
        self._settings = load(ServerSettings, data=data, host=host, port=port)
        if self._settings.ca_file is not None:
            trust.use(self._settings.ca_file)  # as the server itself: it may stand in `.env`
        self._certificate = opened(self._settings.tls_cert_file, self._settings.tls_key_file)
        self.data = self._settings.data_dir.absolute()
        self.host = self._settings.host
        self.port = self._settings.port
        self._workers = workers
        self._adopt_files = adopt_files
        self._extra = dict(environment or {})
        self._save_client = save_client
        self._saved: SavedServer | None = None
        self._lock = FileLock(self.data / "up.lock")
        self._note = self.data / "up.json"
        self._children: list[Child] = []
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="fleet", daemon=True)

    @property
    def url(self) -> str:
        """The server's base URL, as seen from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        if self._certificate is None:
            return f"http://{host}:{self.port}"
        return f"https://{name_of(self._certificate.facts, host)}:{self.port}"

    @property
    def key(self) -> str:
        """The key of the first administrator; there once the fleet was started."""
        return self._key("admin")

    @property
    def logs(self) -> Path:
        """Folder with the output of server and workers."""
        return self.data / "logs"

    def results_dir(self, index: int = 0) -> Path:
        """Return the results folder of a worker, counted from 0."""
        return self.data / ("results" if index == 0 else f"results-{index + 1}")

    def pid(self, name: str) -> int | None:
        """Return the process id of `server`, `worker`, `worker-2` …; `None` while it does not run."""
        return next((child.pid for child in self._children if child.name == name), None)

    def start(self) -> Self:
        """Take the data folder, start server and workers, and wait until the server answers.

        Raises:
            MachineError: If the folder is another fleet's or cannot be used, the port is taken, or a child does not
                start; in the child's own words.
        """
        self._take_folder()
        try:
            self._start_children()
        except BaseException:
            self.stop(keep_jobs=True)
            raise
        self._keeper.start()
        if self._save_client:
            self._saved = SavedServer(load(ClientSettings).client_file, Connection(self.url, self.key))
        return self

    def await_workers(self, patience_s: float, stop: threading.Event | None = None) -> tuple[str, ...]:
        """Wait until the server has heard of every worker that was started."""
        stop = stop or threading.Event()
        deadline = time.monotonic() + patience_s
        with Client(self.url, self.key, patience_s=0.0) as client:
            while True:
                found = self._present(client)
                if len(found) == self._workers or time.monotonic() >= deadline or stop.wait(_LOOK_S):
                    return found

    def _present(self, client: Client) -> tuple[str, ...]:
        try:
            # A worker's row may stand there from an earlier run on this folder: its process tells them apart.
            here = {
                view.capabilities.pid: view.id
                for view in client.workers.list(limit=1000).items
                if view.status == "online"
            }
        except UnreachableError:
            return ()
        found = []
        for child in self._children:
            if child.name != "server" and child.pid in here:
                found.append(here[child.pid])
                child.called = f"Worker {found[-1]}"
        return tuple(found)

    def stop(self, *, keep_jobs: bool = False) -> None:
        """End workers, then the server; may be called again.

        Args:
            keep_jobs: Leave running trainings alive, for the next fleet to adopt. Otherwise each saves a checkpoint
                if that is quick, ends, and goes on from its newest checkpoint in the next fleet on this folder.
        """
        self._stopping.set()
        if self._keeper.is_alive():
            self._keeper.join()
        workers = [child for child in self._children if child.name != "server"]
        number = signal.SIGTERM if keep_jobs else signal.SIGINT
        for index, child in enumerate(workers):
            self._await_heed(index, child)
            child.signal(number)
        for child in workers:
            child.stop(number, patience_s=_WORKER_STOP_S)
        for child in self._children:
            child.stop(signal.SIGTERM, patience_s=_SERVER_STOP_S)
        if self._saved is not None:
            self._saved.put_back()
        self._lock.release()

    def kill(self) -> None:
        """End server and workers at once, without a word; trainings live on."""
        self._stopping.set()
        for child in self._children:
            child.kill()
        if self._saved is not None:
            self._saved.put_back()

    def login_link(self) -> str:
        """Return a link that logs a browser in, once."""
        with Client(self.url, self.key) as client:
            return client.login_code().url

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _take_folder(self) -> None:
        try:
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except FileExistsError:
            raise MachineError(
                f"{self.data} is a file, not a folder.", hint="Choose a folder, new or old, with --data."
            ) from None
        except Timeout:
            raise MachineError(
                f"`tunefleet up` already runs on {self.data}{self._owner_text()}.",
                hint="Use that one, stop it, or choose another folder with --data.",
            ) from None
        except OSError as error:
            raise MachineError(
                f"The data folder {self.data} cannot be used: {error.strerror or error}.",
                hint="Mend its permissions, or choose another folder with --data.",
            ) from error
        self._end_orphans()

    def _start_children(self) -> None:
        arguments = ["--data", str(self.data), "--host", self.host, "--port", str(self.port)]
        arguments += ["--adopt-files"] if self._adopt_files else []
        log = self.logs / "server.log"
        environment = to_server(self._settings, self._extra)
        program = "tunefleet.api.process"
        server = Child("server", "tunefleet.api", arguments, environment=environment, log=log, program=program)
        self._children.append(server)
        server.start()
        self._await_server(server)
        for index in range(self._workers):
            worker = self._worker(index)
            self._children.append(worker)
            worker.start()
        self._write_note()

    def _worker(self, index: int) -> Child:
        name = "worker" if index == 0 else f"worker-{index + 1}"
        arguments = ["--server", self.url, "--results-dir", str(self.results_dir(index))]
        environment = to_worker(
            self._settings, self._extra, key=self._key("worker"), number=index + 1, of=self._workers
        )
        return Child(name, "tunefleet.worker", arguments, environment=environment, log=self.logs / f"{name}.log")

    def _await_server(self, server: Child) -> None:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            if not server.running:
                words = server.last_words() or f"The server ended with code {server.returncode}."
                raise MachineError(words, detail=str(server.log))
            if self._answers():
                return
            time.sleep(0.05)
        raise MachineError(f"The server does not answer at {self.url}.", hint=f"Its log is {server.log}.")

    def _await_heed(self, index: int, worker: Child) -> None:
        """Wait until a worker heeds signals: one that is still importing would die, and leave its jobs alone."""
        state = StateFolder(self.results_dir(index))
        deadline = time.monotonic() + _HEED_S
        while worker.running and not state.heeded_by(worker.pid) and time.monotonic() < deadline:
            time.sleep(_WATCH_S)

    def _answers(self) -> bool:
        if not self._key_file("admin").exists():
            return False
        try:
            with Client(self.url, self.key, patience_s=0.0) as client:
                # Our key works with our server alone: whoever else has the port does not count.
                return client.info().authenticated
        except UnreachableError:
            return False
        except TunefleetError as error:
            logger.debug("Something else answers at %s: %s", self.url, error)
            return False

    def _keep(self) -> None:
        while not self._stopping.wait(_WATCH_S):
            before = [child.pid for child in self._children]
            for child in self._children:
                child.keep()
            if before != [child.pid for child in self._children]:
                self._write_note()

    def _write_note(self) -> None:
        pids = [pid for child in self._children if (pid := child.pid) is not None]
        children = [[pid, started] for pid in pids if (started := _started_at(pid)) is not None]
        self._note.write_text(json.dumps({"pid": os.getpid(), "children": children}), encoding="utf-8")

    def _end_orphans(self) -> None:
        """End what a killed parent left; its children notice by themselves within a second, but may be slow to end."""
        left = [pid for pid, started in self._noted().get("children", []) if _started_at(pid) == started]
        processes = [psutil.Process(pid) for pid in left if psutil.pid_exists(pid)]
        for process in processes:
            logger.info("Ending process %d of an earlier `tunefleet up` that was killed.", process.pid)
            process.terminate()
        _, stubborn = psutil.wait_procs(processes, timeout=_ORPHANS_S)
        for process in stubborn:
            process.kill()

    def _owner_text(self) -> str:
        pid = self._noted().get("pid")
        return f" (pid {pid})" if isinstance(pid, int) else ""

    def _noted(self) -> dict[str, Any]:
        try:
            noted = json.loads(self._note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return noted if isinstance(noted, dict) else {}

    def _key_file(self, role: str) -> Path:
        return self.data / "keys" / f"{role}.key"

    def _key(self, role: str) -> str:
        try:
            return self._key_file(role).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise MachineError(
                f"The {role} key {self._key_file(role)} cannot be read: {error.strerror}.",
                hint="Create a key with `tunefleet keys create` and put it there, or start with an empty data folder.",
            ) from error


def _started_at(pid: int) -> float | None:
    """Return when a process began, which with its pid identifies it; `None` if there is none."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


class SavedServer:
    """Saves a server in `client.json`, and gives the file back to the server that was there before."""

    def __init__(self, file: Path, connection: Connection) -> None:
        self._file = file
        self._ours = connection
        self._before = _read(file)
        write_client_file(file, connection)

    def put_back(self) -> None:
        """Save the server of before again, unless another was saved meanwhile.

        Without one of before the file stays: the next start on the same data folder has the same address and key.
        """
        now, before = _read(self._file), self._before
        if before is not None and now == ClientFile(url=self._ours.url, key=self._ours.key):
            write_client_file(self._file, Connection(before.url, before.key))


def _read(file: Path) -> ClientFile | None:
    try:
        return read_client_file(file)
    except InputError:
        return None  # what cannot be read is of no use to anybody


def name_of(facts: Facts, host: str) -> str:
    """Return a name of the certificate that leads to this machine."""
    if facts.fault is not None:
        raise MachineError(
            f"The certificate in TUNEFLEET_TLS_CERT_FILE is refused by every client: {facts.fault}.",
            hint="Renew it; the server reads it again by itself.",
        )
    if facts.covers(host):
        return host
    if _is_loopback(host) and facts.covers("localhost"):
        return "localhost"
    wanted = _own_addresses() if _is_loopback(host) else {host}
    for name in facts.names:
        if "*" not in name and _addresses(name) & wanted:
            return name
    raise MachineError(
        f"The certificate in TUNEFLEET_TLS_CERT_FILE is for {', '.join(facts.names) or 'no name'}, and none of that "
        f"leads to this machine: its own workers could not check it at {host}.",
        hint="Get one that is for 127.0.0.1 too, or let TUNEFLEET_HOST be the address that its name leads to.",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _own_addresses() -> set[str]:
    return {each.address.partition("%")[0] for found in psutil.net_if_addrs().values() for each in found}


def _addresses(name: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except socket.gaierror:
        return set()


def to_server(settings: ServerSettings, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the server's environment."""
    own = _values(
        REDIS_URL=settings.redis_url,
        ORCHESTRATOR_TOKEN=settings.shared_token,
        TUNEFLEET_DATABASE_URL=settings.database_url,
        TUNEFLEET_SMTP_URL=settings.smtp_url,
    )
    return {**own, **inherited_environment(), **extra}


def to_worker(
    settings: ServerSettings, extra: Mapping[str, str], *, key: str, number: int = 1, of: int = 1
) -> dict[str, str]:
    """Return the environment of a worker."""
    # Amazon's variables open the server's bucket, and every job inherits what its worker has.
    plain = {**_values(REDIS_URL=settings.redis_url), **inherited_environment(*cloud_variables()), **extra}
    # What tasks may name is for workers alone; the server needs no value.
    secret = {f"{SECRET_PREFIX}{name}": value for name, value in secret_variables().items()}
    own = {"LOG_FILE": ""}  # the server's; two processes cannot put one file aside
    return {**plain, **(_apart(number, of) if of > 1 else {}), **own, **secret, "TUNEFLEET_WORKER_KEY": key}


def _apart(number: int, of: int) -> dict[str, str]:
    """Return what keeps workers on one machine out of each other's way: a name and a part of the cores for each."""
    settings = load(WorkerSettings)
    found = {}
    if settings.worker_id and number > 1:
        found["WORKER_ID"] = f"{settings.worker_id}-{number}"
    if settings.torch_threads is None:
        found["TUNEFLEET_TORCH_THREADS"] = str(max(1, core_count() // (of * max(1, settings.job_slots))))
    return found


def _values(**variables: SecretStr | None) -> dict[str, str]:
    """Return the variables that have a value, as an environment takes them."""
    return {name: value.get_secret_value() for name, value in variables.items() if value is not None}
