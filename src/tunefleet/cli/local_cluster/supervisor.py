"""A fleet on this machine: a server and its workers as supervised child processes.

    <data>/up.lock, up.json    the parent that uses this folder, and its children
    <data>/logs/               output of server and workers
    <data>/results/            the worker's results folder (results-2, … for further workers)

The children end if the parent is killed; jobs keep running, and the next fleet on the folder adopts them.
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

import tunefleet
from tunefleet.certificate import CertificateInfo, load_certificate
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
_POLL_S: Final = 0.2
_SERVER_STOP_S: Final = 20.0
# Longer than the server's: a worker saves checkpoints of its jobs first.
_WORKER_STOP_S: Final = 90.0
_SIGNAL_READY_S: Final = 20.0
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
            trust.use(self._settings.ca_file)  # it may be set in `.env`, which only the server settings read
        self._certificate = load_certificate(self._settings.tls_cert_file, self._settings.tls_key_file)
        self.data = self._settings.data_dir.absolute()
        self.host = self._settings.host
        self.port = self._settings.port
        self._workers = workers
        self._adopt_files = adopt_files
        self._extra = dict(environment or {})
        self._save_client = save_client
        self._saved: SavedServer | None = None
        self._lock = FileLock(self.data / "up.lock")
        self._state_file = self.data / "up.json"
        self._children: list[Child] = []
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._supervise, name="fleet", daemon=True)

    @property
    def url(self) -> str:
        """The server's base URL on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        if self._certificate is None:
            return f"http://{host}:{self.port}"
        return f"https://{certificate_host(self._certificate.facts, host)}:{self.port}"

    @property
    def key(self) -> str:
        """The key of the first administrator; exists after the first start."""
        return self._key("admin")

    @property
    def logs(self) -> Path:
        """Folder with the output of server and workers."""
        return self.data / "logs"

    def results_dir(self, index: int = 0) -> Path:
        """Return the results folder of a worker, counted from 0."""
        return self.data / ("results" if index == 0 else f"results-{index + 1}")

    def pid(self, name: str) -> int | None:
        """Return the process id of `server`, `worker`, `worker-2` …; `None` if it is not running."""
        return next((child.pid for child in self._children if child.name == name), None)

    def start(self) -> Self:
        """Lock the data folder, start server and workers, and wait until the server answers.

        Raises:
            MachineError: If the folder is in use or unusable, the port is in use, or a child does not start; with the
                child's error message.
        """
        self._lock_folder()
        try:
            self._start_children()
        # Also on Ctrl-C: a server without its parent must not stay behind.
        except BaseException:
            self.stop(keep_jobs=True)
            raise
        self._watcher.start()
        if self._save_client:
            self._saved = SavedServer(load(ClientSettings).client_file, Connection(self.url, self.key))
        return self

    def await_workers(self, patience_s: float, stop: threading.Event | None = None) -> tuple[str, ...]:
        """Wait until all started workers have registered."""
        stop = stop or threading.Event()
        deadline = time.monotonic() + patience_s
        with Client(self.url, self.key, patience_s=0.0) as client:
            while True:
                found = self._present(client)
                if len(found) == self._workers or time.monotonic() >= deadline or stop.wait(_POLL_S):
                    return found

    def _present(self, client: Client) -> tuple[str, ...]:
        try:
            # The server may still list a worker of an earlier run on this folder: compare process ids.
            by_pid = {
                view.capabilities.pid: view.id
                for view in client.workers.list(limit=1000).items
                if view.status == "online"
            }
        except UnreachableError:
            return ()
        found = []
        for child in self._children:
            if child.name != "server" and child.pid in by_pid:
                found.append(by_pid[child.pid])
                child.label = f"Worker {found[-1]}"
        return tuple(found)

    def stop(self, *, keep_jobs: bool = False) -> None:
        """Stop the workers, then the server; may be called again.

        Args:
            keep_jobs: Keep jobs running for the next fleet to adopt. Otherwise each saves a checkpoint if that is
                quick, ends, and resumes from its newest checkpoint in the next fleet on this folder.
        """
        self._stopping.set()
        # Otherwise it would restart a child that is being stopped.
        if self._watcher.is_alive():
            self._watcher.join()
        # Workers before the server: they still report to it while they stop.
        workers = [child for child in self._children if child.name != "server"]
        number = signal.SIGTERM if keep_jobs else signal.SIGINT
        for index, child in enumerate(workers):
            self._await_signal_handlers(index, child)
            child.signal(number)
        for child in workers:
            child.stop(number, patience_s=_WORKER_STOP_S)
        for child in self._children:
            child.stop(signal.SIGTERM, patience_s=_SERVER_STOP_S)
        if self._saved is not None:
            self._saved.restore()
        self._lock.release()

    def kill(self) -> None:
        """Kill server and workers; jobs keep running."""
        self._stopping.set()
        for child in self._children:
            child.kill()
        if self._saved is not None:
            self._saved.restore()

    @property
    def has_page(self) -> bool:
        """Whether this installation has the web page; a source tree has none until it is built."""
        return (Path(tunefleet.__file__).parent / "api" / "ui" / "index.html").is_file()

    def login_link(self) -> str:
        """Return a single-use link that logs a browser in."""
        with Client(self.url, self.key) as client:
            return client.login_code().url

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _lock_folder(self) -> None:
        try:
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except FileExistsError:
            raise MachineError(f"{self.data} is a file, not a folder.", hint="Choose a folder with --data.") from None
        except Timeout:
            raise MachineError(
                f"`tunefleet up` is already running on {self.data}{self._owner_text()}.",
                hint="Use it, stop it, or choose another folder with --data.",
            ) from None
        except OSError as error:
            raise MachineError(
                f"The data folder {self.data} cannot be used: {error.strerror or error}.",
                hint="Fix its permissions, or choose another folder with --data.",
            ) from error
        self._end_orphans()

    def _start_children(self) -> None:
        arguments = ["--data", str(self.data), "--host", self.host, "--port", str(self.port)]
        arguments += ["--adopt-files"] if self._adopt_files else []
        log = self.logs / "server.log"
        environment = server_environment(self._settings, self._extra)
        program = "tunefleet.api.process"
        server = Child("server", "tunefleet.api", arguments, environment=environment, log=log, program=program)
        self._children.append(server)
        # The server first: the workers need its keys, which its first start creates.
        server.start()
        self._await_server(server)
        for index in range(self._workers):
            worker = self._worker(index)
            self._children.append(worker)
            worker.start()
        self._write_state()

    def _worker(self, index: int) -> Child:
        name = "worker" if index == 0 else f"worker-{index + 1}"
        arguments = ["--server", self.url, "--results-dir", str(self.results_dir(index))]
        environment = worker_environment(
            self._settings, self._extra, key=self._key("worker"), number=index + 1, of=self._workers
        )
        return Child(name, "tunefleet.worker", arguments, environment=environment, log=self.logs / f"{name}.log")

    def _await_server(self, server: Child) -> None:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            if not server.running:
                message = server.last_output() or f"The server exited with code {server.returncode}."
                raise MachineError(message, detail=str(server.log))
            if self._answers():
                return
            time.sleep(0.05)
        raise MachineError(f"The server does not respond at {self.url}.", hint=f"Its log is {server.log}.")

    def _await_signal_handlers(self, index: int, worker: Child) -> None:
        """Wait until a worker handles signals: one that is still importing would die and leave its jobs running."""
        state = StateFolder(self.results_dir(index))
        deadline = time.monotonic() + _SIGNAL_READY_S
        while worker.running and not state.heeded_by(worker.pid) and time.monotonic() < deadline:
            time.sleep(_WATCH_S)

    def _answers(self) -> bool:
        if not self._key_file("admin").exists():
            return False
        try:
            with Client(self.url, self.key, patience_s=0.0) as client:
                # Another server on this port rejects our key, and does not count as ready.
                return client.info().authenticated
        except UnreachableError:
            return False
        except TunefleetError as error:
            logger.debug("Another service responds at %s: %s", self.url, error)
            return False

    def _supervise(self) -> None:
        while not self._stopping.wait(_WATCH_S):
            before = [child.pid for child in self._children]
            for child in self._children:
                child.restart_if_dead()
            # The next `up` needs the pids to end orphans.
            if before != [child.pid for child in self._children]:
                self._write_state()

    def _write_state(self) -> None:
        pids = [pid for child in self._children if (pid := child.pid) is not None]
        children = [[pid, started] for pid in pids if (started := _started_at(pid)) is not None]
        self._state_file.write_text(json.dumps({"pid": os.getpid(), "children": children}), encoding="utf-8")

    def _end_orphans(self) -> None:
        """End the children of a killed parent."""
        # They notice its end within a second, but may be slow to exit and still hold the port.
        left = [pid for pid, started in self._read_state().get("children", []) if _started_at(pid) == started]
        processes = [psutil.Process(pid) for pid in left if psutil.pid_exists(pid)]
        for process in processes:
            logger.info("Stopping process %d of an earlier `tunefleet up` that was killed.", process.pid)
            process.terminate()
        _, stubborn = psutil.wait_procs(processes, timeout=_ORPHANS_S)
        for process in stubborn:
            process.kill()

    def _owner_text(self) -> str:
        pid = self._read_state().get("pid")
        return f" (pid {pid})" if isinstance(pid, int) else ""

    def _read_state(self) -> dict[str, Any]:
        try:
            state = json.loads(self._state_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

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
    """Return a process's start time, which identifies it together with its pid; `None` if it has ended."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


class SavedServer:
    """Saves a server in `client.json`, and restores the previous one later."""

    def __init__(self, file: Path, connection: Connection) -> None:
        self._file = file
        self._ours = connection
        self._previous = _read(file)
        write_client_file(file, connection)

    def restore(self) -> None:
        """Restore the previous server, unless another was saved in the meantime.

        Without a previous one the file stays: the next start on the same data folder has the same URL and key.
        """
        current, previous = _read(self._file), self._previous
        if previous is not None and current == ClientFile(url=self._ours.url, key=self._ours.key):
            write_client_file(self._file, Connection(previous.url, previous.key))


def _read(file: Path) -> ClientFile | None:
    try:
        return read_client_file(file)
    except InputError:
        return None  # an unreadable file cannot be restored anyway


def certificate_host(facts: CertificateInfo, host: str) -> str:
    """Return a name of the certificate that resolves to this machine."""
    if facts.fault is not None:
        raise MachineError(
            f"Clients reject the certificate in TUNEFLEET_TLS_CERT_FILE: {facts.fault}.",
            hint="Renew it; a running server reloads it automatically.",
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
        f"The certificate in TUNEFLEET_TLS_CERT_FILE is for {', '.join(facts.names) or 'no name'}, which does not "
        f"resolve to this machine: local workers cannot verify it at {host}.",
        hint="Use a certificate that includes 127.0.0.1, or set TUNEFLEET_HOST to the IP address of its name.",
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


def server_environment(settings: ServerSettings, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the server's environment."""
    own = _values(
        TUNEFLEET_REDIS_URL=settings.redis_url,
        TUNEFLEET_SHARED_TOKEN=settings.shared_token,
        TUNEFLEET_DATABASE_URL=settings.database_url,
        TUNEFLEET_SMTP_URL=settings.smtp_url,
    )
    return {**own, **inherited_environment(), **extra}


def worker_environment(
    settings: ServerSettings, extra: Mapping[str, str], *, key: str, number: int = 1, of: int = 1
) -> dict[str, str]:
    """Return the environment of a worker."""
    # Without the AWS variables: they open the server's bucket, and jobs inherit the worker's environment.
    plain = {**_values(TUNEFLEET_REDIS_URL=settings.redis_url), **inherited_environment(*cloud_variables()), **extra}
    # Only workers resolve the secrets of tasks; the server needs no values.
    secret = {f"{SECRET_PREFIX}{name}": value for name, value in secret_variables().items()}
    own = dict.fromkeys(
        ServerSettings.names_of("TUNEFLEET_LOG_FILE"), ""
    )  # the server's log file: two processes cannot rotate one file
    return {**plain, **(_separation(number, of) if of > 1 else {}), **own, **secret, "TUNEFLEET_WORKER_KEY": key}


def _separation(number: int, of: int) -> dict[str, str]:
    """Return settings that separate workers on one machine: a name and a share of the cores for each."""
    settings = load(WorkerSettings)
    found: dict[str, str] = {}
    if settings.worker_id and number > 1:
        own_id = f"{settings.worker_id}-{number}"
        found |= dict.fromkeys(WorkerSettings.names_of("TUNEFLEET_WORKER_ID"), own_id)
    if settings.torch_threads is None:
        found["TUNEFLEET_TORCH_THREADS"] = str(max(1, core_count() // (of * max(1, settings.job_slots))))
    return found


def _values(**variables: SecretStr | None) -> dict[str, str]:
    """Return the variables that have a value as plain strings."""
    return {name: value.get_secret_value() for name, value in variables.items() if value is not None}
