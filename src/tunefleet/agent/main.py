"""Builds an agent from its settings and serves it until a signal stops it; its jobs keep running."""

from __future__ import annotations

import errno
import ipaddress
import logging
import re
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvicorn
from filelock import FileLock, Timeout

import tunefleet
from tunefleet.agent.agent import Agent
from tunefleet.agent.gpus import Gpus
from tunefleet.agent.jobs.command_outbox import CommandExecutor
from tunefleet.agent.jobs.job_context import AgentContext
from tunefleet.agent.jobs.job_queue import JobTable
from tunefleet.agent.poller import Poller, client_for
from tunefleet.agent.routes import create_app
from tunefleet.agent.verbs import AdminCommands
from tunefleet.certificate import Certificate, load_certificate, reloaded
from tunefleet.client import trust
from tunefleet.client.backend import JobClient
from tunefleet.client.external.download import Downloader
from tunefleet.errors import MachineError
from tunefleet.executors import registry
from tunefleet.fsutil import write_private
from tunefleet.http_heads import BoundedHeads
from tunefleet.observability.spans import open_spans
from tunefleet.runtime import Supervisor
from tunefleet.runtime.environment import BRIEF_SPIN, core_count
from tunefleet.settings import AgentSettings, inherited_environment

logger = logging.getLogger(__name__)

# Delay of a requested restart, so that the response is sent first.
_RESTART_S: Final = 1.0
_JOB_DEFAULTS: Final = BRIEF_SPIN
_ID = re.compile(r"[A-Za-z0-9_.-]{10,80}")
_BACKLOG: Final = 512
_PORTS: Final = (8000, 8001)


def run(settings: AgentSettings) -> bool:
    """Run an agent until SIGTERM, SIGINT or a requested restart; call it from the main thread.

    Returns:
        Whether it is to be restarted.

    Raises:
        MachineError: If it cannot listen, or its settings would allow access without a key.
    """
    check(settings)
    trust.use(settings.ca_file)
    certificate = load_certificate(settings.tls_cert_file, settings.tls_key_file)
    if certificate is not None:
        certificate.tell()
    elif not is_loopback(settings.host):
        logger.warning(
            "TUNEFLEET_AGENT_HOST=%s exposes plain HTTP: TUNEFLEET_AGENT_KEY and files can be intercepted. "
            "Set TUNEFLEET_TLS_CERT_FILE and TUNEFLEET_TLS_KEY_FILE, or use a reverse proxy with TLS.",
            settings.host,
        )
    name = agent_id(settings)
    # Before the agent is built, so that a port in use is reported before any job is touched.
    bound = bind(settings)
    try:
        agent = build(settings, name)
        with exclusive(settings):
            server = _Server(agent, bound, certificate)
            agent.open()
            ProgressLines(agent).start()
            poller = _poller(agent, server.verbs, name)
            if poller is not None:
                poller.start()
            try:
                server.serve_until_signal()
            finally:
                running = len(agent.job_table.running())
                if poller is not None:
                    poller.stop()
                agent.close()
    finally:
        bound.close()
    logger.info("Stopped. Jobs still running: %d.", running)
    return server.restart


@contextmanager
def exclusive(settings: AgentSettings) -> Iterator[None]:
    """Lock `TUNEFLEET_CHECKPOINTS_DIR` for this process: a second agent on it would run its jobs twice."""
    checkpoints = settings.checkpoints_dir.expanduser()
    path = checkpoints / ".agent" / "lock"
    # One by one, since `mkdir(parents=True)` ignores the mode for parents.
    for folder in (checkpoints, path.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        # Waits for an agent that is just stopping.
        lock.acquire(timeout=10)
    except Timeout:
        raise MachineError(
            f"Another agent already uses {settings.checkpoints_dir}.",
            hint="Stop it, or set another TUNEFLEET_CHECKPOINTS_DIR.",
        ) from None
    try:
        yield
    finally:
        lock.release()


def _poller(agent: Agent, verbs: AdminCommands, name: str) -> Poller | None:
    settings = agent.settings
    backend, key = settings.backend, settings.api_key
    if backend is None or key is None or not settings.poll_enabled:
        why = "TUNEFLEET_POLL is off" if not settings.poll_enabled else "TUNEFLEET_BACKEND_KEY is not set"
        logger.info("Not polling a backend: %s.", why if backend else "TUNEFLEET_BACKEND_URL is not set")
        return None
    due = threading.Event()
    folder = settings.checkpoints_dir.expanduser() / ".agent"
    executor = CommandExecutor(agent.job_table, verbs, folder, due.set)
    logger.info("Polling %s for jobs as %s.", backend, name)
    return Poller(agent, lambda: client_for(backend, key.get_secret_value(), name), executor, due)


def build(settings: AgentSettings, name: str = "") -> Agent:
    """Build an agent, and create its folders.

    Raises:
        MachineError: If tracing is configured, but its packages are not installed.
    """
    spans = open_spans(settings.otlp_endpoint, "tunefleet-agent", tunefleet.__version__, name or None)
    for folder in (settings.models_dir, settings.datasets_dir, settings.checkpoints_dir, settings.logs_dir):
        _create_folder(folder.expanduser())
    jobs = Supervisor(
        settings.checkpoints_dir.expanduser(),
        endpoints_dir=settings.endpoints_dir,
        warm=settings.warm_start,
        base_env={**_JOB_DEFAULTS, **inherited_environment(*AgentSettings.names_of("TUNEFLEET_BACKEND_KEY"))},
        log_bytes=settings.job_log_bytes,
    )
    gpus = Gpus(settings)
    downloads = Downloader(settings.datasets_dir.expanduser().absolute(), allowed=settings.url_allow, who="agent")
    agent_context = AgentContext(
        settings=settings,
        jobs=jobs,
        registry=registry.installed(),
        fetch=downloads.fetch,
        gpus=gpus.choose,
        backend=JobClient,
        env=_threads(settings),
        load=gpus.load,
        gpu_monitor=gpus.gpu_monitor,
        spans=spans,
        name=name,
    )
    return Agent(settings, JobTable(agent_context), gpus)


class _Server(uvicorn.Server):
    """A uvicorn server that ends event streams before it waits for open connections."""

    def __init__(self, agent: Agent, bound: socket.socket, certificate: Certificate | None) -> None:
        self._agent = agent
        self._bound = bound
        self.restart = False
        self.verbs = AdminCommands(agent, self._ask_restart)
        super().__init__(
            uvicorn.Config(
                create_app(agent, self.verbs),
                loop="uvloop",
                http=BoundedHeads,
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # access is decided by the actual peer, not by a header
                timeout_graceful_shutdown=3,
            )
        )
        self._certificate = certificate
        if certificate is not None:
            self.config.load()
            # Not by file names: this context can load a renewed certificate without a restart.
            self.config.ssl = certificate.context

    def _ask_restart(self) -> None:
        self.restart = True
        threading.Timer(_RESTART_S, setattr, (self, "should_exit", True)).start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the event streams, then shut down as uvicorn does."""
        self._agent.stopping.set()
        await super().shutdown(sockets)

    def serve_until_signal(self) -> None:
        """Serve until a signal arrives."""
        # Own handlers, because uvicorn raises the signal again when it is done, which would end the process before the
        # agent is closed, and because uvicorn installs its handlers only once its loop runs.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        host, port = self._bound.getsockname()[:2]
        scheme = "http" if self._certificate is None else "https"
        logger.info("Tunefleet agent %s at %s://%s:%d", tunefleet.__version__, scheme, host, port)
        with reloaded(self._certificate):
            self.run(sockets=[self._bound])


def _create_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(
            f"Cannot create the folder {folder}: {error.strerror}.",
            hint="Fix the permissions of its parent folder, or set another one.",
        ) from error


def _threads(settings: AgentSettings) -> dict[str, str]:
    """Divide the cores among concurrent jobs."""
    return {"OMP_NUM_THREADS": str(max(1, core_count() // settings.max_jobs))} if settings.max_jobs > 1 else {}


def agent_id(settings: AgentSettings) -> str:
    """Return the agent's ID for the backend; generated as `agent_` and 16 hex digits if it is not set.

    Raises:
        MachineError: If the file that stores it cannot be used.
    """
    if settings.agent_id:
        return settings.agent_id
    path = settings.agent_id_file
    try:
        if path.exists():
            kept = path.read_text(encoding="utf-8").strip()
            if not _ID.fullmatch(kept):
                raise MachineError(
                    f"{path} has no valid agent ID: {kept[:40]!r}.", hint="Delete it, or set TUNEFLEET_AGENT_ID."
                )
            return kept
        generated = f"agent_{secrets.token_hex(8)}"
        write_private(path, f"{generated}\n")
    except OSError as error:
        raise MachineError(
            f"Cannot store the agent's ID in {path}: {error.strerror}.",
            hint="Fix the folder's permissions, or set TUNEFLEET_AGENT_ID.",
        ) from error
    logger.info("Generated agent ID %s.", generated)
    return generated


class ProgressLines:
    """Logs the progress of running jobs periodically, in its own thread."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        while not self._agent.stopping.wait(self._agent.settings.heartbeat_interval_s):
            for job in self._agent.job_table.running():
                try:
                    logger.info("%s", line(self._agent, job.job_id))
                except Exception:
                    logger.exception("Could not log the progress of job(%s).", job.job_id)


def line(agent: Agent, job_id: str) -> str:
    """Return the progress of a job as a log line."""
    status = agent.status(job_id)
    parts = [f"job({job_id}) {status.phase or status.status}"]
    if status.total_steps:
        parts.append(f"step {status.current_step}/{status.total_steps} ({status.progress:.0f}%)")
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4g}")
    if status.eta_s is not None:
        parts.append(f"{status.eta_s:.0f} s left")
    return ", ".join(parts)


def check(settings: AgentSettings) -> None:
    """Reject settings that would allow access without a key.

    Raises:
        MachineError: If it would listen beyond loopback without a key.
    """
    if settings.key is None and not is_loopback(settings.host):
        raise MachineError(
            f"TUNEFLEET_AGENT_HOST={settings.host} exposes the agent to the network, but there is no "
            "TUNEFLEET_AGENT_KEY.",
            hint="Set TUNEFLEET_AGENT_KEY to a long random string, or unset TUNEFLEET_AGENT_HOST.",
        )


def bind(settings: AgentSettings) -> socket.socket:
    """Listen on `TUNEFLEET_AGENT_PORT`; if it is not set, on 8000, or on 8001 if 8000 is in use.

    Raises:
        MachineError: If no port is free.
    """
    wanted = _PORTS if settings.port is None else (settings.port,)
    for port in wanted:
        try:
            bound = _listen(settings.host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == wanted[-1]:
                raise MachineError(
                    f"Cannot listen on {settings.host}:{port}: {error.strerror}.",
                    hint="Set TUNEFLEET_AGENT_PORT to a free port.",
                ) from None
            logger.warning("Port %d is in use and TUNEFLEET_AGENT_PORT is not set: using %d.", port, _PORTS[1])
        else:
            return bound
    raise AssertionError("the last port either works or raises")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise MachineError(
            f"HOST={host!r} has no address: {error.strerror}.",
            hint="Set HOST to an address of this machine, or unset it.",
        ) from None
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    bound.setblocking(False)
    return bound


def is_loopback(host: str) -> bool:
    """Return whether a host is only reachable from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
