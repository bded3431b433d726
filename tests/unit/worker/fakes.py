"""A server, a supervisor and a file store in memory, for a worker on a real folder.

`Crash` stands for SIGKILL: once it was raised, every further effect of that worker raises it too, so that nothing
happens after the moment of death; the fakes and the folder are what survives.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.unit.worker.fake_server import WAIT_S, FakeServer
from tunefleet.client.transfer import OnProgress, ignore_progress
from tunefleet.executors.base import JobExecutor, Output
from tunefleet.executors.data_and_echo import EchoExecutor
from tunefleet.executors.registry import Registry
from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.control import CommandState, ControlReply
from tunefleet.schemas.job_folder import Job, JobFolder, JobStatus
from tunefleet.schemas.worker_guide import ResultFile
from tunefleet.schemas.worker_link import Capabilities, FinishOutcome, JournalBatch
from tunefleet.worker.context import WorkerContext
from tunefleet.worker.interfaces import Handle, Sink
from tunefleet.worker.outbox import Outbox
from tunefleet.worker.state import AttemptRecord, StateFolder
from tunefleet.worker.transfers import InputStore, Transfers
from tunefleet.worker.worker import Worker

logger = logging.getLogger(__name__)


class Crash(BaseException):
    """The worker was killed."""


@dataclass(frozen=True)
class FakeEnd:
    """How a fake job ended."""

    outcome: FinishOutcome = "completed"
    reason: TaskReason = TaskReason.FINISHED
    error: str | None = None
    detail: str | None = None


class FakeJob:
    """A job process: it outlives the worker that launched it."""

    def __init__(self, job: Job, folder: JobFolder) -> None:
        self.job = job
        self.folder = folder
        self.ended: FakeEnd | None = None
        self.cancels: list[float] = []
        self.commands: list[str] = []
        self.told: JobStatus | None = JobStatus(state="running", phase="training", at=0.0, pid=1)
        self.read = False

    def poll(self) -> FakeEnd | None:
        return self.ended

    def cancel(self, grace_s: float) -> None:
        self.cancels.append(grace_s)
        if self.ended is None:
            self.ended = FakeEnd("cancelled", TaskReason.ABORTED)

    def kill(self) -> None:
        self.ended = self.ended or FakeEnd("failed", TaskReason.KILLED)

    def status(self) -> JobStatus | None:
        return self.told

    def command(self, name: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> ControlReply:
        self.commands.append(name)
        return ControlReply(command=name, command_id=command_id or "", timestamp=0.0, message="")

    def command_state(self, command_id: str) -> CommandState:
        return CommandState(command_id=command_id, command=self.commands[-1], state="durable")

    def acknowledge(self) -> None:
        self.read = True

    def end(self, end: FakeEnd | None = None) -> None:
        """The process ends by itself."""
        end = end or FakeEnd()
        if end.outcome == "completed":
            result: dict[str, Any] = {"ok": True, "launch": self.job.launch}
            for child in self.job.merge_children:
                left = self.folder.root / "children" / child.task_id / "final_lora"
                left.mkdir(parents=True, exist_ok=True)
                (left / "adapter.bin").write_bytes(child.task_id.encode())
                result.setdefault("children", {})[child.task_id] = {"items": [f"of {child.task_id}"]}
            self.folder.responses_json.write_text(json.dumps(result))
            out = self.folder.root / "final_lora"
            out.mkdir(exist_ok=True)
            (out / "adapter.bin").write_bytes(b"weights")
        self.ended = end


class FakeJobs:
    """The supervisor; `all` is what `ps` would show and what the folders remember."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.all: list[FakeJob] = []
        self.ends_at_once = False

    def launch(self, job: Job) -> Handle:
        assert not [old for old in self.all if old.job.job_id == job.job_id and old.ended is None], "two at once"
        folder = JobFolder(self.results / job.job_id)
        folder.root.mkdir(parents=True, exist_ok=True)
        made = FakeJob(job, folder)
        self.all.append(made)
        if self.ends_at_once:
            made.end()
        return made

    def adopt(self) -> list[Handle]:
        newest = {job.job.job_id: job for job in self.all}
        return [job for job in newest.values() if not job.read]

    def close(self) -> None:
        pass


class FakeFiles:
    """The server's file store."""

    def __init__(self) -> None:
        self.pushed: list[tuple[str, str, str]] = []
        self.fetches = 0
        self.push_error: Exception | None = None

    def journal(self, task_id: str, batch: JournalBatch) -> int:
        return batch.from_seq + len(batch.lines)

    def log(self, task_id: str, offset: int, data: bytes) -> int:
        return offset + len(data)

    def push_artifact(
        self,
        task_id: str,
        name: str,
        kind: str,
        path: Path,
        metadata: Mapping[str, Any] | None = None,
        expected: Mapping[str, str] | None = None,
    ) -> object:
        if self.push_error is not None:
            raise self.push_error
        assert path.exists()
        self.pushed.append((task_id, name, kind))
        return None

    def fetch_artifact(self, digest: str, dest: Path, *, on_progress: OnProgress = ignore_progress) -> Path:
        self.fetches += 1
        (dest / "rows.jsonl").write_text("{}\n")
        return dest / "rows.jsonl"

    def result_files(self, task_id: str) -> tuple[ResultFile, ...]:
        names = dict.fromkeys(name for task, name, _ in self.pushed if task == task_id)
        link = "http://server/api/v1/results"
        return tuple(
            ResultFile(name=name, size_bytes=1, sha256="0" * 64, url=f"{link}/{task_id}/files/{name}") for name in names
        )

    def fetch_result_file(
        self, task_id: str, file: ResultFile, dest: Path, *, on_progress: OnProgress = ignore_progress
    ) -> None:
        raise AssertionError("nothing is fetched from another task here")

    def close(self) -> None:
        pass


class FakeShipper:
    """Has always delivered everything."""

    def __init__(self, folder: JobFolder, sink: Sink) -> None:
        self.cursors: Mapping[str, int] = {"a": 3}

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def flush(self, timeout_s: float) -> bool:
        return True


class TrainExecutor(JobExecutor):
    """A kind with a job, an input and an output."""

    kind = "train"
    program = "nowhere:main"

    def outputs(self, folder: JobFolder) -> list[Output]:
        return [Output("final_lora", "adapter", folder.root / "final_lora")]


class Mortal:
    """Counts the effects of a worker and kills it before the n-th."""

    def __init__(self, die_at: int | None = None) -> None:
        self.count = 0
        self._die_at = die_at
        self.dead = threading.Event()
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            if self.dead.is_set():
                raise Crash
            self.count += 1
            if self.count == self._die_at:
                self.dead.set()
                raise Crash

    def wrap(self, target: Any, *names: str) -> Any:
        """Return the target with these methods counted."""
        mortal = self

        class Counted:
            def __getattr__(self, name: str) -> Any:
                value = getattr(target, name)
                if name not in names:
                    return value

                def act(*args: Any, **kwargs: Any) -> Any:
                    mortal.step()
                    return value(*args, **kwargs)

                return act

        return Counted()


class World:
    """What survives a worker: the server, the jobs, the files, the results folder."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.server = FakeServer()
        self.jobs = FakeJobs(results)
        self.files = FakeFiles()

    def job(self, index: int = -1, *, count: int = 1) -> FakeJob:
        """Wait until so many jobs were launched and return one."""
        self.server.wait_for(lambda: len(self.jobs.all) >= count)
        return self.jobs.all[index]

    def records(self) -> list[AttemptRecord]:
        """What the folder says is held."""
        return StateFolder(self.results).attempts()


class Running:
    """A worker in a thread: leave the block to stop it like SIGTERM does."""

    def __init__(
        self,
        world: World,
        *,
        mortal: Mortal | None = None,
        drain: bool = False,
        slots: int = 1,
        transfers: Transfers | None = None,
    ) -> None:
        mortal = mortal or Mortal()
        self.world = world
        self.mortal = mortal
        self.state = StateFolder(world.results)
        self.state.open()
        self.error: BaseException | None = None
        link = mortal.wrap(world.server, "exchange", "register")
        self.site = WorkerContext(
            results_dir=world.results,
            state=mortal.wrap(self.state, "keep", "forget"),
            outbox=Outbox("w-1", "session"),
            registry=Registry([EchoExecutor(), TrainExecutor()]),
            jobs=mortal.wrap(world.jobs, "launch", "adopt"),
            inputs=InputStore(world.results / ".inputs"),
            shipper=FakeShipper,
            delivery=lambda _: mortal.wrap(world.files, "push_artifact", "fetch_artifact"),
            env={},
            suspend_save_s=0.5,
            transfers=transfers or Transfers(),
        )
        self.worker = Worker(
            "w-1",
            "session",
            worker_context=self.site,
            link=link,
            probe=probe,
            slots={"job": slots, "light": 8},
            drain=drain,
        )
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:
            self.error = error
            logger.info("The worker ended.", exc_info=True)

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, *, suspend: bool = False) -> None:
        """Stop in good order."""
        self.worker.stop(suspend=suspend)
        self.thread.join(WAIT_S)
        self.worker.close()
        self.state.close()

    def bury(self) -> None:
        """After a crash: wait until nothing of it acts any more, and free the lock as the kernel would."""
        self.mortal.dead.set()
        self.worker.stop()
        self.world.server.close()
        self.thread.join(WAIT_S)
        self.worker.close()
        self.state.close()


def probe() -> Capabilities:
    """A machine without anything."""
    return Capabilities(
        version="0",
        hostname="here",
        executors=(),
        slots={"job": 1, "light": 8},
        cpu_count=1,
        memory_total_bytes=1,
        memory_free_bytes=1,
        disk_free_bytes=1,
    )
