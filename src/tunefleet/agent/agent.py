"""The agent itself: its jobs, its GPUs, its limits; what the routes and the poller work on."""

from __future__ import annotations

import threading

from tunefleet.agent import admission, views
from tunefleet.agent.gpus import Gpus
from tunefleet.agent.jobs.job_queue import JobBook
from tunefleet.agent.jobs.records import AgentRecord
from tunefleet.agent.translate import Defaults
from tunefleet.runtime.monitor.system import SystemReader
from tunefleet.settings import AgentSettings
from tunefleet.spec import load_task_spec


class Agent:
    """One agent."""

    def __init__(self, settings: AgentSettings, book: JobBook, gpus: Gpus) -> None:
        self.settings = settings
        self.book = book
        self.gpus = gpus
        self.system = SystemReader(settings.checkpoints_dir.expanduser())
        self.stopping = threading.Event()

    def open(self) -> None:
        """Look at the machine, and go on with what was there."""
        self.gpus.start()
        self.book.open()

    def close(self) -> None:
        """Stop; jobs go on."""
        self.stopping.set()
        self.book.close()
        self.gpus.stop()
        self.book.site.jobs.close()
        if self.book.site.spans is not None:
            self.book.site.spans.close()

    def defaults(self) -> Defaults:
        """Return what settings and machine add to a config."""
        settings = self.settings
        return Defaults(
            save_steps=settings.checkpoint_interval_steps,
            logging_steps=settings.metrics_interval_steps,
            mixed_precision=settings.mixed_precision,
            gpu=self.gpus.info()["device_count"] > 0,
            bf16=self.gpus.has_bf16,
            allow_code=settings.allow_code,
        )

    def admit(self, record: AgentRecord) -> None:
        """Refuse a job that could never run here."""
        admission.refuse_unready(load_task_spec(record.spec).environments)
        admission.admit(record.spec, self.gpus.limit_bytes(), self.settings.gpu_memory_fraction)

    def status(self, job_id: str) -> views.JobStatusView:
        """Return how a job stands."""
        job = self.book.find(job_id)
        waiting = [other.job_id for other in self.book.queue()]
        position = waiting.index(job_id) + 1 if job_id in waiting else None
        gpus = job.handle.job.gpus if job.handle is not None else ()
        return views.status(job, position=position, load=self.gpus.load(gpus[0]) if gpus else None)
