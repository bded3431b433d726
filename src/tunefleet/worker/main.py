"""Builds a worker from its settings and runs it until a signal ends it.

Signals: SIGTERM leaves the running jobs alive, for the next worker on the folder to adopt. SIGINT suspends them: each
saves a checkpoint if that is quick, ends, and is launched again from its newest checkpoint by the next worker.
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
from tunefleet.runtime.gpu import gpus as ledger
from tunefleet.runtime.gpu.info import GpuFigures, read_gpus, visible
from tunefleet.runtime.monitor.preemption import GpuSentry
from tunefleet.runtime.secrets.resolver import Secrets
from tunefleet.schemas.worker_link import Capabilities, ExecutorOffer, Load, Offer
from tunefleet.settings import WorkerSettings, inherited_environment, secret_variables, unsupported
from tunefleet.transport.base import WorkerLink
from tunefleet.transport.http import HttpLink
from tunefleet.transport.redis.connection import address_of
from tunefleet.transport.redis.keys import Keys
from tunefleet.worker import transfers
from tunefleet.worker.context import Site
from tunefleet.worker.ephemeral import Once
from tunefleet.worker.inputs import InputStore
from tunefleet.worker.machine import changes, hub, probe
from tunefleet.worker.machine.changes import Noticed
from tunefleet.worker.machine.heartbeat import Heartbeat
from tunefleet.worker.machine.probe import EnergyMeter
from tunefleet.worker.machine.rendezvous import Place
from tunefleet.worker.outbox import Outbox
from tunefleet.worker.state import StateFolder
from tunefleet.worker.verbs import RecentLog, Verbs, exec_self
from tunefleet.worker.worker import Worker, new_session

logger = logging.getLogger(__name__)


def run(
    settings: WorkerSettings, *, drain: bool = False, once: Once | None = None, executors: Registry | None = None
) -> bool:
    """Run a worker until a signal ends it; call it from the main thread.

    Returns:
        Whether it has made way, and would go on if there were nodes again.

    Raises:
        TunefleetError: If it cannot work: no key or a bad one, a folder that cannot be written or is in use.
    """
    trust.use(settings.ca_file)
    for sentence in unsupported("worker"):
        logger.warning(sentence)
    _require_key(settings)
    results_dir = settings.results_dir.expanduser().absolute()
    state = StateFolder(results_dir)
    try:
        with _signals(once) as stopper, ExitStack() as closing:
            # From here on a signal is heeded; the folder's owner.json tells others so, if there is room for it.
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
            f"{settings.server_url} does not take this worker's key: {error.message}",
            hint="Set TUNEFLEET_WORKER_KEY to a good one; `tunefleet keys create NAME --role worker` makes it.",
        ) from error
    except OSError as error:
        raise MachineError(f"The worker cannot go on: {error}.", detail=repr(error)) from error
    finally:
        state.close()
    if verbs.restart_wanted:
        exec_self()
    if once is not None and worker.left:
        once.clean(results_dir)
    return worker.made_way


def _opened(settings: WorkerSettings, state: StateFolder, pause: Callable[[float], bool]) -> WorkerSettings | None:
    """Take the folder, and return the settings that hold from now on; None if the worker is stopped meanwhile."""
    if not state.open(pause=pause):
        return None
    changed = changes.applied(settings, state)
    return changed if "server_url" in settings.model_fields_set else _with_address(changed, pause)


def _with_address(settings: WorkerSettings, pause: Callable[[float], bool]) -> WorkerSettings | None:
    """Return settings that name the server by HTTP: files, journals and logs go there, whatever carries the messages.

    Returns:
        The settings, with the address that the server says in Redis where nobody has named one; None if the worker is
        stopped while nobody says it.
    """
    redis_address = address_of(settings)
    if redis_address is None:
        return settings
    from tunefleet.transport.redis.worker import server_url  # noqa: PLC0415 -- most workers need no Redis

    keys, silent = Keys(settings.topic, settings.redis_prefix), 0
    while True:
        try:
            found, why = server_url(redis_address, keys), "No server has said there where it is."
        except UnreachableError as error:
            found, why = None, str(error)
        if found is not None:
            logger.info("The server is at %s, as it says in Redis.", found)
            return settings.model_copy(update={"server_url": found})
        if silent % _SAY_EVERY == 0:
            logger.warning("Waiting for the server's address. %s ORCHESTRATOR_BASE_URL names it.", why)
        silent += 1
        if not pause(_ASK_S):
            return None


def _require_key(settings: WorkerSettings) -> None:
    if settings.key is None and settings.redis_url is None:
        raise AuthError(
            "The worker has no key.",
            hint="Join a server with `tunefleet join URL TOKEN`; `tunefleet workers invite` there makes the command. "
            "Or set TUNEFLEET_WORKER_KEY to a key with the role worker. "
            "A worker that meets its server in a Redis (REDIS_URL) needs none.",
        )


_JOB_DEFAULTS: Final = BRIEF_SPIN
_ASK_S: Final = 1.0
_SAY_EVERY: Final = 30
"""Of so many looks for the server's address one is logged."""


def _build(
    settings: WorkerSettings, state: StateFolder, executors: Registry, spans: Spans | None, *, drain: bool
) -> tuple[Worker, Verbs, Heartbeat]:
    worker_id, session = state.worker_id(settings.worker_id), new_session()
    context.about_process(worker_id=worker_id)
    results_dir = state.results_dir
    sentry = _sentry(settings)
    secrets = Secrets(secret_variables(), settings.secrets_dir, settings.secrets_limits)
    for name in secrets.unknown():
        logger.warning("TUNEFLEET_SECRETS_LIMITS limits %s, but this machine has no secret of that name.", name)
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
    site = Site(
        results_dir=results_dir,
        state=state,
        outbox=Outbox(worker_id, session),
        registry=executors,
        jobs=jobs,
        inputs=InputStore(results_dir / ".inputs"),
        shipper=JournalShipper,
        delivery=lambda token: AttemptClient(settings.server_url, token, throttle=moving.throttle, reach=reach),
        env=_threads(settings),
        gpus=partial(_choose_gpus, settings, sentry),
        allow_code=settings.allow_code,
        sentry=sentry,
        makes_way=settings.yielding == "pause",
        secrets=secrets,
        transfers=moving,
        spans=spans,
        worker_id=worker_id,
        place=Place.of(settings),
    )
    recent = RecentLog()
    logging.getLogger().addHandler(recent)

    within_reach = _reach(settings)

    def offered() -> tuple[ExecutorOffer, ...]:
        found = executors.offers(allow_code=settings.allow_code, environment=environment)
        why = within_reach()
        if why is None:
            return found
        jobs = {each.kind: each.model_copy(update={"available": False, "reason": why}) for each in found}
        return tuple(jobs[each.kind] if each.slot_class == "job" and each.available else each for each in found)

    def describe() -> Capabilities:
        names = secrets.announced()
        return probe.capabilities(settings, offered(), results_dir=results_dir, in_use=_in_use(sentry), secrets=names)

    # The worker is not there yet, and verbs come from it: `stop` finds it when it is wanted.
    verbs = Verbs(state, site.outbox, describe=describe, recent=recent, stop=lambda: worker.stop(suspend=False))
    worker = Worker(
        worker_id,
        session,
        site=site,
        link=_link(settings, state),
        probe=describe,
        slots={"job": settings.job_slots, "light": settings.light_slots},
        drain=drain,
        on_verb=verbs.take,
    )

    ground, meter = Noticed(lambda: (hub.cached(settings.hub_dir), envs.ready(), offered())), EnergyMeter()

    def load() -> Load:
        if ground.changed():
            worker.register_anew()
        return probe.load(settings, results_dir=results_dir, in_use=_in_use(sentry), meter=meter)

    return worker, verbs, Heartbeat(site.outbox, load, settings.heartbeat_interval_s)


def _reach(settings: WorkerSettings) -> Callable[[], str | None]:
    """Return what tells why no job can run here, since the server of its files is not reached; None if it is.

    Who exchanges messages by HTTP reaches it, or hears of no task.
    """
    if address_of(settings) is None:
        return lambda: None

    def look() -> str | None:
        if answers(settings.server_url):
            return None
        where = f"the server does not answer at {settings.server_url}, where the files of tasks are"
        return f"{where}; set ORCHESTRATOR_BASE_URL on the worker"

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
    """Share the cores among the jobs that may run at once, unless somebody has said how many threads each gets."""
    if settings.torch_threads:
        return {"OMP_NUM_THREADS": str(settings.torch_threads)}
    if settings.job_slots > 1:
        return {"OMP_NUM_THREADS": str(max(1, core_count() // settings.job_slots))}
    return {}


def _sentry(settings: WorkerSettings) -> GpuSentry | None:
    if settings.yielding == "off":
        return None
    sentry = GpuSentry(
        ledger.ledger_dir(settings.endpoints_dir),
        idle_s=settings.yield_idle_s,
        read=lambda: _visible_gpus(settings),
    )
    sentry.look()
    return sentry


def _in_use(sentry: GpuSentry | None) -> dict[str, str]:
    return {} if sentry is None else sentry.in_use()


def _choose_gpus(settings: WorkerSettings, sentry: GpuSentry | None, offer: Offer) -> tuple[str, ...]:
    folder = ledger.ledger_dir(settings.endpoints_dir)
    return gpu_allocation.choose(offer.spec, _visible_gpus(settings), ledger=folder, sentry=sentry, given=offer.gpus)


def _visible_gpus(settings: WorkerSettings) -> tuple[GpuFigures, ...]:
    return visible(read_gpus(), settings.visible_gpus)


class _Stopper:
    """Hands signals to the worker; those that come before there is one are kept for it."""

    def __init__(self, once: Once | None) -> None:
        self._asked: list[int] = []
        self._once = once
        self._worker: Worker | None = None

    def ask(self, number: int, _: FrameType | None) -> None:
        """Handle a signal."""
        self._asked.append(number)
        if self._worker is not None:
            # A handler may interrupt code that holds a lock, so the stopping itself happens in a thread.
            threading.Thread(target=self._heed, args=(self._worker, number), name="stop", daemon=True).start()

    @property
    def makes_way(self) -> bool:
        """Whether what was asked for is to make way, and not to end."""
        return self._once is not None and self._asked.count(signal.SIGINT) < 2

    def pause(self, seconds: float) -> bool:
        """Let time pass; returns whether no signal has asked for a stop."""
        until = time.monotonic() + seconds
        while not self._asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(0.1, left))
        return not self._asked

    def attach(self, worker: Worker) -> None:
        """Stop this worker from now on, and at once if that was asked for before."""
        self._worker = worker
        for number in self._asked:
            self._heed(worker, number)

    def _heed(self, worker: Worker, number: int) -> None:
        if self.makes_way:
            worker.make_way()
        else:
            worker.stop(suspend=number == signal.SIGINT)


@contextmanager
def _signals(once: Once | None) -> Iterator[_Stopper]:
    """Let signals ask for a stop while the body runs: SIGTERM and SIGINT; where a cluster sends it, SIGUSR1 too."""
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
    """Write the log to a file too while the body runs.

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
            f"The log {path} cannot be written: {error.strerror or error}.", hint="Mend LOG_FILE or its folder."
        ) from error
    handler.setFormatter(formatter(settings.log_format))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
