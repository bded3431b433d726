"""Takes jobs from a backend that cannot reach this machine: poll, claim, heartbeat.

Our own server holds the poll until there is something, so commands act within a second or two; a backend that only
knows the document's fields is polled at its interval and gets no heartbeats.
"""

from __future__ import annotations

import logging
import platform
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from tunefleet.agent import intake
from tunefleet.agent.agent import Agent
from tunefleet.agent.capabilities import capabilities, load
from tunefleet.agent.jobs.command_outbox import Orders
from tunefleet.agent.jobs.records import AgentRecord
from tunefleet.client.backend import AgentClient
from tunefleet.errors import AuthError, ConflictError, InputError, NotFoundError, TunefleetError
from tunefleet.runtime import envs
from tunefleet.schemas.training_protocol.training import ClaimReply, Heartbeat, JobState, PolledJob

logger = logging.getLogger(__name__)

_HOLD_S: Final = 20.0
_HASTE_S: Final = 0.5
_AWAY_S: Final = (1.0, 30.0)
_SHUT_OUT_S: Final = 60.0


def client_for(url: str, key: str, agent_id: str) -> AgentClient:
    """Return a client that says which machine this is."""
    headers = {"X-Agent-Hostname": socket.gethostname(), "X-Agent-Platform": platform.system().lower()}
    return AgentClient(url, key, agent_id, headers)


class Poller:
    """Polls one backend in a thread of its own; another one sends the heartbeats."""

    def __init__(self, agent: Agent, client: Callable[[], AgentClient], orders: Orders, due: threading.Event) -> None:
        self._agent = agent
        self._client = client
        self._orders = orders
        self._due = due
        self._stopping = agent.stopping
        self._beat_s = agent.settings.heartbeat_interval_s
        self._threads = [
            threading.Thread(target=self._poll_loop, name="poll", daemon=True),
            threading.Thread(target=self._beat_loop, name="heartbeat", daemon=True),
            threading.Thread(target=orders.run, args=(self._stopping,), name="orders", daemon=True),
        ]

    def start(self) -> None:
        """Begin to poll."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop; a held poll ends with its connection."""
        self._stopping.set()
        self._due.set()

    def _poll_loop(self) -> None:
        failures = 0
        with self._client() as client:
            while not self._stopping.is_set():
                try:
                    pause_s = self._poll_once(client)
                    failures = 0
                except AuthError as error:
                    logger.error("The backend does not take API_KEY: %s", error)  # noqa: TRY400 -- says all there is
                    pause_s = _SHUT_OUT_S
                except TunefleetError as error:
                    failures += 1
                    logger.log(logging.WARNING if failures == 1 else logging.DEBUG, "Polling failed: %s", error)
                    first, longest = _AWAY_S
                    pause_s = min(longest, first * 2 ** (failures - 1))
                except Exception:
                    logger.exception("The poll loop failed; it goes on.")
                    pause_s = _AWAY_S[1]
                self._stopping.wait(pause_s)

    def _poll_once(self, client: AgentClient) -> float:
        """Poll, and do what came; return how long to wait before the next poll."""
        began = time.monotonic()
        want = self._agent.book.free()
        reply = client.poll(_HOLD_S, want=want)
        self._orders.take(reply.commands)
        self._drop(reply.drop)
        if reply.job is not None and want > 0 and self._claim(client, reply.job):
            return 0.0
        if reply.wait_s is None:
            settings = self._agent.settings
            # Who sets the interval here means it; else the backend knows best.
            own = "poll_interval_s" in settings.model_fields_set
            return settings.poll_interval_s if own else float(reply.poll_interval_seconds)
        return max(0.0, _HASTE_S - (time.monotonic() - began))

    def _claim(self, client: AgentClient, job: PolledJob) -> bool:
        try:
            claimed = client.claim(job.id)
        except (ConflictError, NotFoundError, InputError) as error:
            logger.info("Job %s went to somebody else: %s", job.id, error)
            return False
        self._submit(claimed)
        self._due.set()
        return True

    def _submit(self, claimed: ClaimReply) -> None:
        agent, job = self._agent, claimed.job
        try:
            record = intake.from_poll(job, claimed.job_token, agent.settings, agent.defaults())
            agent.admit(record)
        except TunefleetError as error:
            logger.warning("job(%s) cannot run here: %s", job.id, error)
            record = self._refused(claimed, str(error))
        except Exception as error:
            # It is claimed: whoever sent it would wait for ever.
            logger.exception("job(%s) cannot be read.", job.id)
            record = self._refused(claimed, f"The agent failed at this job: {type(error).__name__}: {error}")
        try:
            agent.book.submit(record)
        except ConflictError:
            agent.book.renew(record)

    def _refused(self, claimed: ClaimReply, error: str) -> AgentRecord:
        job, now = claimed.job, time.time()
        return AgentRecord(
            job_id=job.id, name=job.name or job.id, kind=job.kind or "sft", spec={}, order=now, completed_at=now,
            state=JobState.FAILED, error=error, backend=self._agent.settings.backend, token=claimed.job_token,
            polled=True,
        )  # fmt: skip

    def _drop(self, job_ids: tuple[str, ...]) -> None:
        for job_id in job_ids:
            try:
                self._agent.book.drop(job_id)
            except NotFoundError:
                logger.debug("The backend drops %s, which is not here.", job_id)

    def _beat_loop(self) -> None:
        # The environments that the backend knows of; one that is created later is reported with the next heartbeat.
        told: tuple[str, ...] | None = None
        with self._client() as client:
            while not self._stopping.is_set():
                self._due.clear()
                try:
                    ready = envs.ready()
                    told = ready if self._beat(client, with_capabilities=ready != told) else None
                except NotFoundError:
                    logger.info("The backend knows no heartbeats; jobs are claimed without a lease.")
                    return
                except TunefleetError as error:
                    # The backend may have forgotten this agent meanwhile, or have been told to.
                    told = None
                    logger.debug("The heartbeat failed: %s", error)
                    self._stopping.wait(_AWAY_S[0])
                except Exception:
                    logger.exception("The heartbeat failed; it is tried again.")
                self._due.wait(self._beat_s)

    def _beat(self, client: AgentClient, *, with_capabilities: bool) -> bool:
        """Send one; tell whether the backend surely knows what this machine has: one that drops jobs may not."""
        agent = self._agent
        outcomes = self._orders.outcomes()
        held = [job.job_id for job in agent.book.jobs() if job.record.polled and not job.told_all]
        beat = Heartbeat(
            holding=tuple(held),
            capabilities=capabilities(agent) if with_capabilities else None,
            load=load(agent),
            outcomes=outcomes,
            want=agent.book.free(),
        )
        reply = client.heartbeat(beat)
        self._beat_s = max(0.5, min(agent.settings.heartbeat_interval_s, reply.lease_s / 3))
        self._orders.stored(outcomes, reply.outcomes)
        self._orders.take(reply.commands)
        self._drop(reply.drop)
        return not reply.drop
