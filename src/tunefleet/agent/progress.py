"""One line for each running job now and then, in the agent's own log."""

from __future__ import annotations

import logging
import threading

from tunefleet.agent.agent import Agent

logger = logging.getLogger(__name__)


class ProgressLines:
    """Writes the lines in a thread of its own."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        while not self._agent.stopping.wait(self._agent.settings.heartbeat_interval_s):
            for job in self._agent.book.running():
                try:
                    logger.info("%s", line(self._agent, job.job_id))
                except Exception:
                    logger.exception("The progress of job(%s) cannot be told.", job.job_id)


def line(agent: Agent, job_id: str) -> str:
    """Return how a job stands, in a line."""
    status = agent.status(job_id)
    parts = [f"job({job_id}) {status.phase or status.status}"]
    if status.total_steps:
        parts.append(f"step {status.current_step}/{status.total_steps} ({status.progress:.0f} %)")
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4g}")
    if status.eta_s is not None:
        parts.append(f"{status.eta_s:.0f} s left")
    return ", ".join(parts)
