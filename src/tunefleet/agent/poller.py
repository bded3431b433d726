"""Pulls jobs from a backend that cannot reach this machine: poll, claim, heartbeat.

A Tunefleet server supports long polls, so that commands take effect within a second or two; a backend that implements
only the basic protocol is polled at its interval and gets no heartbeats.
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
from tunefleet.agent.jobs.command_outbox import CommandExecutor
from tunefleet.agent.jobs.job import AgentRecord
from tunefleet.client.backend import AgentClient
from tunefleet.errors import AuthError, ConflictError, InputError, NotFoundError, TunefleetError
from tunefleet.runtime import envs
from tunefleet.schemas.training_protocol.training import ClaimReply, Heartbeat, JobState, PolledJob

logger = logging.getLogger(__name__)

# Long-poll time that the agent requests.
_HOLD_S: Final = 20.0
# Minimum time between two long polls, in case the backend answers immediately.
_MIN_INTERVAL_S: Final = 0.5
# Backoff while the backend is unreachable: first and longest pause.
_BACKOFF_S: Final = (1.0, 30.0)
# Pause after a rejected TUNEFLEET_BACKEND_KEY.
_REJECTED_S: Final = 60.0


def client_for(url: str, key: str, agent_id: str) -> AgentClient:
    """Return a client that identifies this machine in its headers."""
    headers = {"X-Agent-Hostname": socket.gethostname(), "X-Agent-Platform": platform.system().lower()}
    return AgentClient(url, key, agent_id, headers)


class Poller:
    """Polls one backend in one thread and sends heartbeats in another."""

    def __init__(
        self, agent: Agent, client: Callable[[], AgentClient], executor: CommandExecutor, due: threading.Event
    ) -> None:
        self._agent = agent
        self._client = client
        self._executor = executor
        self._due = due
        self._stopping = agent.stopping
        self._beat_s = agent.settings.heartbeat_interval_s
        self._threads = [
            threading.Thread(target=self._poll_loop, name="poll", daemon=True),
            threading.Thread(target=self._beat_loop, name="heartbeat", daemon=True),
            threading.Thread(target=executor.run, args=(self._stopping,), name="orders", daemon=True),
        ]

    def start(self) -> None:
        """Start polling."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop; does not wait for a long poll."""
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
                    logger.error("The backend rejected TUNEFLEET_BACKEND_KEY: %s", error)  # noqa: TRY400 -- a traceback adds nothing
                    pause_s = _REJECTED_S
                except TunefleetError as error:
                    failures += 1
                    logger.log(logging.WARNING if failures == 1 else logging.DEBUG, "Polling failed: %s", error)
                    first, longest = _BACKOFF_S
                    pause_s = min(longest, first * 2 ** (failures - 1))
                except Exception:
                    logger.exception("Unexpected error in the poll loop, retrying.")
                    pause_s = _BACKOFF_S[1]
                self._stopping.wait(pause_s)

    def _poll_once(self, client: AgentClient) -> float:
        """Poll and handle the reply; return the pause before the next poll in seconds."""
        began = time.monotonic()
        want = self._agent.job_table.free()
        reply = client.poll(_HOLD_S, want=want)
        self._executor.take(reply.commands)
        self._drop(reply.drop)
        if reply.job is not None and want > 0 and self._claim(client, reply.job):
            return 0.0
        if reply.wait_s is None:
            settings = self._agent.settings
            # An interval in the agent's settings wins over the backend's.
            own = "poll_interval_s" in settings.model_fields_set
            return settings.poll_interval_s if own else float(reply.poll_interval_seconds)
        return max(0.0, _MIN_INTERVAL_S - (time.monotonic() - began))

    def _claim(self, client: AgentClient, job: PolledJob) -> bool:
        try:
            claimed = client.claim(job.id)
        except (ConflictError, NotFoundError, InputError) as error:
            logger.info("Job %s was claimed by another agent: %s", job.id, error)
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
            logger.warning("Rejected job(%s): %s", job.id, error)
            record = self._refused(claimed, str(error))
        except Exception as error:
            # The job is claimed: without a report of its failure, the backend would wait for it forever.
            logger.exception("Unexpected error while reading job(%s).", job.id)
            record = self._refused(claimed, f"Unexpected error in the agent: {type(error).__name__}: {error}")
        try:
            agent.job_table.submit(record)
        except ConflictError:
            agent.job_table.renew(record)

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
                self._agent.job_table.drop(job_id)
            except NotFoundError:
                logger.debug("The backend dropped %s, which this agent does not have.", job_id)

    def _beat_loop(self) -> None:
        # Reported environments; a new one is reported with the next heartbeat.
        reported: tuple[str, ...] | None = None
        with self._client() as client:
            while not self._stopping.is_set():
                self._due.clear()
                try:
                    ready = envs.ready()
                    reported = ready if self._beat(client, with_capabilities=ready != reported) else None
                except NotFoundError:
                    logger.info("The backend does not support heartbeats; jobs are claimed without a lease.")
                    return
                except TunefleetError as error:
                    # The backend may have lost the state of this agent meanwhile.
                    reported = None
                    logger.debug("The heartbeat failed: %s", error)
                    self._stopping.wait(_BACKOFF_S[0])
                except Exception:
                    logger.exception("Unexpected error in the heartbeat, retrying.")
                self._due.wait(self._beat_s)

    def _beat(self, client: AgentClient, *, with_capabilities: bool) -> bool:
        """Send a heartbeat; returns whether the backend certainly has the capabilities of this machine."""
        # Not if it drops jobs: then it may have lost the state of this agent.
        agent = self._agent
        outcomes = self._executor.outcomes()
        held = [job.job_id for job in agent.job_table.jobs() if job.record.polled and not job.fully_reported]
        beat = Heartbeat(
            holding=tuple(held),
            capabilities=capabilities(agent) if with_capabilities else None,
            load=load(agent),
            outcomes=outcomes,
            want=agent.job_table.free(),
        )
        reply = client.heartbeat(beat)
        # A third of the lease: two heartbeats in a row may be lost.
        self._beat_s = max(0.5, min(agent.settings.heartbeat_interval_s, reply.lease_s / 3))
        self._executor.stored(outcomes, reply.outcomes)
        self._executor.take(reply.commands)
        self._drop(reply.drop)
        return not reply.drop
