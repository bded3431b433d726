"""Builds a worker from its settings and runs it until a signal ends it.

Signals: SIGTERM leaves running jobs alive; the next worker on the folder adopts them. SIGINT suspends them: each saves
a checkpoint if that is quick, ends, and is relaunched from its newest checkpoint by the next worker.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

import tunefleet
from tunefleet.client import trust
from tunefleet.client.attempt import AttemptClient
from tunefleet.client.connection import answers
from tunefleet.client.direct import StoreReach
from tunefleet.errors import AuthError, MachineError, UnreachableError
from tunefleet.executors import registry
from tunefleet.executors.registry import Registry
from tunefleet.observability import context
from tunefleet.observability.logs import PrivateLogFile, formatter
from tunefleet.observability.spans import Spans, open_spans
from tunefleet.runtime import JournalShipper, Supervisor, envs, gpu_allocation
from tunefleet.runtime.environment import BRIEF_SPIN, core_count
from tunefleet.runtime.gpu import gpu_locks as ledger
from tunefleet.runtime.gpu.info import GpuFigures, read_gpus, visible
from tunefleet.runtime.monitor.preemption import GpuContentionMonitor
from tunefleet.runtime.secrets import Secrets
from tunefleet.schemas.worker_link import Capabilities, ExecutorOffer, Load, Offer
from tunefleet.settings import WorkerSettings, inherited_environment, secret_variables, unsupported
from tunefleet.transport.base import WorkerLink
from tunefleet.transport.http import HttpLink
from tunefleet.transport.redis.address import address_of
from tunefleet.transport.redis.keys import Keys
from tunefleet.worker import transfers
from tunefleet.worker.context import WorkerContext
from tunefleet.worker.ephemeral import EphemeralWorkerOptions
from tunefleet.worker.machine import probe
from tunefleet.worker.machine.probe import EnergyMeter, Heartbeat
from tunefleet.worker.machine.rendezvous import RendezvousAddress
from tunefleet.worker.outbox import Outbox
from tunefleet.worker.state import StateFolder
from tunefleet.worker.transfers import InputStore
from tunefleet.worker.verbs import AdminCommands, ChangeDetector, RecentLog, apply_changes, exec_self
from tunefleet.worker.worker import Worker, new_session

logger = logging.getLogger(__name__)
_JOB_DEFAULTS: Final = BRIEF_SPIN
_ASK_S: Final = 1.0
# One of this many lookups of the server's address is logged.
_SAY_EVERY: Final = 30


def run(
    settings: WorkerSettings,
    *,
    drain: bool = False,
    once: EphemeralWorkerOptions | None = None,
    executors: Registry | None = None,
) -> bool:
    """Run a worker until a signal stops it; call it from the main thread.

    Returns:
        Whether it was preempted, and its task is to continue on another node.

    Raises:
        TunefleetError: If it cannot run: no key or an invalid one, a folder that is not writable or in use.
    """
    trust.use(settings.ca_file)
    for message in unsupported("worker"):
        logger.warning(message)
    _require_key(settings)
    results_dir = settings.results_dir.expanduser().absolute()
    state = StateFolder(results_dir)
    try:
        with _signals(once) as stopper, ExitStack() as closing:
            # Signal handlers come before owner.json is written: others signal the process that the file names.
            opened = _opened(settings, state, stopper.pause)
            if opened is None:
                return stopper.makes_way
            settings = opened
            closing.enter_context(kept(settings, results_dir))
            spans = open_spans(settings.otlp_endpoint, "tunefleet-worker", tunefleet.__version__)
            if spans is not None:
                closing.callback(spans.close)
            worker, verbs, heartbeat = _build(settings, state, executors or registry.installed(), spans, drain=drain)
            stopper.attach(worker)
            for part in (worker, verbs, heartbeat):
                closing.callback(part.close)
            heartbeat.start()
            if once is not None:
                once.watch(worker)
            worker.run()
    except AuthError as error:
        raise AuthError(
            f"{settings.server_url} rejected this worker's key: {error.message}",
            hint="Set TUNEFLEET_WORKER_KEY to a valid key; create one with `tunefleet keys create NAME --role worker`.",
        ) from error
    except OSError as error:
        raise MachineError(f"The worker cannot continue: {error}.", detail=repr(error)) from error
    finally:
        state.close()
    # After the folder's lock is released: the new process takes it again.
    if verbs.restart_wanted:
        exec_self()
    if once is not None and worker.left:
        once.clean(results_dir)
    return worker.made_way


def _opened(settings: WorkerSettings, state: StateFolder, pause: Callable[[float], bool]) -> WorkerSettings | None:
    """Lock the folder, and return the effective settings; None if the worker is stopped meanwhile."""
    if not state.open(pause=pause):
        return None
    changed = apply_changes(settings, state)
    return changed if "server_url" in settings.model_fields_set else _with_address(changed, pause)


def _with_address(settings: WorkerSettings, pause: Callable[[float], bool]) -> WorkerSettings | None:
    """Return settings with the server's HTTP address, which is looked up in Redis if it is not set.

    Returns:
        The settings; None if the worker is stopped before the address is known.
    """
    # Files, journals and logs always use HTTP, whichever transport carries the messages.
    redis_address = address_of(settings)
    if redis_address is None:
        return settings
    from tunefleet.transport.redis.worker import server_url  # noqa: PLC0415 -- most workers need no Redis

    keys, silent = Keys(settings.topic, settings.redis_prefix), 0
    while True:
        try:
            url, why = server_url(redis_address, keys), "No server has published its URL in Redis."
        except UnreachableError as error:
            url, why = None, str(error)
        if url is not None:
            logger.info("Using server URL %s from Redis.", url)
            return settings.model_copy(update={"server_url": url})
        if silent % _SAY_EVERY == 0:
            logger.warning("Waiting for the server's URL. %s Or set TUNEFLEET_SERVER_URL.", why)
        silent += 1
        if not pause(_ASK_S):
            return None


def _require_key(settings: WorkerSettings) -> None:
    if settings.key is None and settings.redis_url is None:
        raise AuthError(
            "The worker has no key.",
            hint="Join a server with `tunefleet join URL TOKEN`; `tunefleet workers invite` there prints the command. "
            "Or set TUNEFLEET_WORKER_KEY to a key with the role worker. "
            "A worker that connects through Redis (TUNEFLEET_REDIS_URL) needs no key.",
        )


def _build(
    settings: WorkerSettings, state: StateFolder, executors: Registry, spans: Spans | None, *, drain: bool
) -> tuple[Worker, AdminCommands, Heartbeat]:
    worker_id, session = state.worker_id(settings.worker_id), new_session()
    context.process_log_ids(worker_id=worker_id)
    results_dir = state.results_dir
    gpu_monitor = _gpu_monitor(settings)
    secrets = Secrets(secret_variables(), settings.secrets_dir, settings.secrets_limits)
    for name in secrets.unknown():
        logger.warning("TUNEFLEET_SECRETS_LIMITS names %s, but this machine has no secret of that name.", name)
    moving, reach = transfers.of(settings, results_dir), StoreReach()
    environment = {**_JOB_DEFAULTS, **inherited_environment(), **settings.handed_on, **secrets.environment}
    jobs = Supervisor(
        results_dir,
        endpoints_dir=settings.endpoints_dir,
        warm=settings.warm_start,
        warm_idle_s=settings.warm_idle_s,
        base_env=environment,
        log_bytes=settings.job_log_bytes,
    )
    input_store = InputStore(results_dir / ".inputs")
    input_store.delete_stale()
    worker_context = WorkerContext(
        results_dir=results_dir,
        state=state,
        outbox=Outbox(worker_id, session),
        registry=executors,
        jobs=jobs,
        inputs=input_store,
        shipper=JournalShipper,
        delivery=lambda token: AttemptClient(settings.server_url, token, throttle=moving.throttle, reach=reach),
        env=_threads(settings),
        gpus=partial(_choose_gpus, settings, gpu_monitor),
        allow_code=settings.allow_code,
        gpu_monitor=gpu_monitor,
        makes_way=settings.yielding == "pause",
        secrets=secrets,
        transfers=moving,
        spans=spans,
        worker_id=worker_id,
        rendezvous=RendezvousAddress.of(settings),
    )
    recent = RecentLog()
    logging.getLogger().addHandler(recent)

    within_reach = _reach(settings)

    def offered() -> tuple[ExecutorOffer, ...]:
        offers = executors.offers(allow_code=settings.allow_code, environment=environment)
        why = within_reach()
        if why is None:
            return offers
        jobs = {each.kind: each.model_copy(update={"available": False, "reason": why}) for each in offers}
        return tuple(jobs[each.kind] if each.slot_class == "job" and each.available else each for each in offers)

    def describe() -> Capabilities:
        names = secrets.reported_names()
        return probe.capabilities(
            settings, offered(), results_dir=results_dir, in_use=_in_use(gpu_monitor), secrets=names
        )

    # `worker` is assigned below: the two refer to each other, and the lambda is only called later.
    verbs = AdminCommands(
        state, worker_context.outbox, describe=describe, recent=recent, stop=lambda: worker.stop(suspend=False)
    )
    worker = Worker(
        worker_id,
        session,
        worker_context=worker_context,
        link=_link(settings, state),
        probe=describe,
        slots={"job": settings.job_slots, "light": settings.light_slots},
        drain=drain,
        on_admin_command=verbs.take,
    )

    ground, meter = (
        ChangeDetector(lambda: (probe.cached_models(settings.hub_dir), envs.ready(), offered())),
        EnergyMeter(),
    )

    def load() -> Load:
        if ground.changed():
            worker.request_registration()
        return probe.load(settings, results_dir=results_dir, in_use=_in_use(gpu_monitor), meter=meter)

    return worker, verbs, Heartbeat(worker_context.outbox, load, settings.heartbeat_interval_s)


def _reach(settings: WorkerSettings) -> Callable[[], str | None]:
    """Return a check that the file server is reachable: it returns why no job can run here, or None."""
    # With the HTTP transport no check is needed: without the server, no task arrives either.
    if address_of(settings) is None:
        return lambda: None

    def look() -> str | None:
        if answers(settings.server_url):
            return None
        why = f"task files cannot be fetched: the server does not respond at {settings.server_url}"
        return f"{why}; set TUNEFLEET_SERVER_URL on the worker"

    return look


def _link(settings: WorkerSettings, state: StateFolder) -> WorkerLink:
    redis_address = address_of(settings)
    if redis_address is None:
        assert settings.key is not None, "checked by run"
        return HttpLink(settings.server_url, settings.key.get_secret_value())
    from tunefleet.transport.redis.worker import RedisLink  # noqa: PLC0415 -- most workers need no Redis

    return RedisLink(
        redis_address,
        Keys(settings.topic, settings.redis_prefix),
        server_url=settings.server_url,
        heartbeat_interval_s=settings.heartbeat_interval_s,
        held=[record.offer for record in state.attempts()],
    )


def _threads(settings: WorkerSettings) -> dict[str, str]:
    """Divide the cores among concurrent jobs, unless the settings define the threads per job."""
    if settings.torch_threads:
        return {"OMP_NUM_THREADS": str(settings.torch_threads)}
    if settings.job_slots > 1:
        return {"OMP_NUM_THREADS": str(max(1, core_count() // settings.job_slots))}
    return {}


def _gpu_monitor(settings: WorkerSettings) -> GpuContentionMonitor | None:
    if settings.yielding == "off":
        return None
    gpu_monitor = GpuContentionMonitor(
        ledger.ledger_dir(settings.endpoints_dir),
        idle_s=settings.yield_idle_s,
        read=lambda: _visible_gpus(settings),
    )
    gpu_monitor.look()
    return gpu_monitor


def _in_use(gpu_monitor: GpuContentionMonitor | None) -> dict[str, str]:
    return {} if gpu_monitor is None else gpu_monitor.in_use()


def _choose_gpus(settings: WorkerSettings, gpu_monitor: GpuContentionMonitor | None, offer: Offer) -> tuple[str, ...]:
    folder = ledger.ledger_dir(settings.endpoints_dir)
    return gpu_allocation.choose(
        offer.spec, _visible_gpus(settings), ledger=folder, gpu_monitor=gpu_monitor, given=offer.gpus
    )


def _visible_gpus(settings: WorkerSettings) -> tuple[GpuFigures, ...]:
    return visible(read_gpus(), settings.visible_gpus)


class _Stopper:
    """Forwards signals to the worker; those that arrive before it exists are stored."""

    def __init__(self, once: EphemeralWorkerOptions | None) -> None:
        self._asked: list[int] = []
        self._once = once
        self._worker: Worker | None = None

    def ask(self, number: int, _: FrameType | None) -> None:
        """Handle a signal."""
        self._asked.append(number)
        if self._worker is not None:
            # A handler may interrupt code that holds a lock, so the worker is stopped from a thread.
            threading.Thread(target=self._heed, args=(self._worker, number), name="stop", daemon=True).start()

    @property
    def makes_way(self) -> bool:
        """Whether the signals request a preemption rather than a stop."""
        # A second Ctrl-C means that the user wants it to end, not to save and release its task first.
        return self._once is not None and self._asked.count(signal.SIGINT) < 2

    def pause(self, seconds: float) -> bool:
        """Sleep; returns whether no signal has requested a stop."""
        # In short steps rather than on an event: a signal handler must take no lock that the main thread may hold.
        until = time.monotonic() + seconds
        while not self._asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(0.1, left))
        return not self._asked

    def attach(self, worker: Worker) -> None:
        """Forward signals to this worker, including those received before."""
        self._worker = worker
        for number in self._asked:
            self._heed(worker, number)

    def _heed(self, worker: Worker, number: int) -> None:
        if self.makes_way:
            worker.make_way()
        else:
            worker.stop(suspend=number == signal.SIGINT)


@contextmanager
def _signals(once: EphemeralWorkerOptions | None) -> Iterator[_Stopper]:
    """Handle SIGTERM and SIGINT while the body runs, and SIGUSR1 on cluster nodes."""
    # Cluster schedulers send SIGUSR1 some time before the end of an allocation.
    stopper = _Stopper(once)
    heeded = (signal.SIGTERM, signal.SIGINT, *((signal.SIGUSR1,) if once is not None else ()))
    before = {number: signal.signal(number, stopper.ask) for number in heeded}
    try:
        yield stopper
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def kept(settings: WorkerSettings, results_dir: Path) -> Iterator[None]:
    """Also write the log to a file while the body runs.

    Raises:
        MachineError: If the file cannot be written.
    """
    path = settings.log_file.expanduser() if settings.log_file is not None else results_dir / "worker.log"
    try:
        handler = PrivateLogFile(
            path, maxBytes=settings.log_max_bytes, backupCount=settings.log_backup_count, encoding="utf-8"
        )
    except OSError as error:
        raise MachineError(
            f"Cannot write the log {path}: {error.strerror or error}.", hint="Fix TUNEFLEET_LOG_FILE or its folder."
        ) from error
    handler.setFormatter(formatter(settings.log_format))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
