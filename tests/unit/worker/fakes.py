"""A server, a supervisor and a file store in memory, for a worker on a real folder.

`Crash` stands for SIGKILL: once it was raised, every further effect of that worker raises it too, so that nothing
happens after the moment of death; the fakes and the folder are what survives.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunefleet.errors import UnreachableError
from tunefleet.executors.base import JobExecutor, Output
from tunefleet.executors.echo import EchoExecutor
from tunefleet.executors.registry import Registry
from tunefleet.lifecycle.task import TaskReason
from tunefleet.links.base import WorkerLink
from tunefleet.wire.control import CommandState, ControlReply
from tunefleet.wire.jobfolder import Job, JobFolder
from tunefleet.wire.link import (
    Behind,
    Capabilities,
    Command,
    Desired,
    ExchangeReply,
    ExchangeRequest,
    Finish,
    FinishOutcome,
    JournalBatch,
    Offer,
    RegisterReply,
    RegisterRequest,
)
from tunefleet.worker.inputs import InputStore
from tunefleet.worker.outbox import Outbox
from tunefleet.worker.ports import Handle, Sink
from tunefleet.worker.site import Site
from tunefleet.worker.state import AttemptRecord, StateFolder
from tunefleet.worker.worker import Worker

logger = logging.getLogger(__name__)
WAIT_S = 10.0


class Crash(BaseException):
    """The worker was killed."""


@dataclass
class Row:
    """An attempt as the server has it."""

    offer: Offer
    state: str = "offered"
    finish: Finish | None = None
    desired: Desired | None = None
    commands: list[Command] = field(default_factory=list)


class FakeServer(WorkerLink):
    """The rules of the link (MECHANISMS §2), without durability, placement or clocks."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.exchanges: list[ExchangeRequest] = []
        self.registrations: list[RegisterRequest] = []
        self.outcomes: list[Any] = []
        self.reached: list[Any] = []
        self.away = False
        self.error: Exception | None = None
        self.behind_once: set[str] = set()
        self.loses_finishes = False
        self.on_accept: Callable[[str], None] = lambda _: None
        self._news = threading.Condition()
        self._turn = 0

    def offer(self, task_id: str = "task-1", *, kind: str = "train", attempt: int = 1, **more: Any) -> str:
        """Offer an attempt; returns its token."""
        token = f"att-{task_id}-{attempt}.secret"
        slot_class = "light" if kind == "echo" else "job"
        made = Offer(
            token=token,
            task_id=task_id,
            workflow_id="wf-1",
            attempt=attempt,
            kind=kind,
            name=task_id,
            slot_class=slot_class,
            spec=more.pop("spec", {}),
            grace_s=0.1,
            **more,
        )
        with self._news:
            self.rows[token] = Row(made)
            self._news.notify_all()
        return token

    def void(self, token: str) -> None:
        """Give the attempt to somebody else."""
        self._set(token, state="void")

    def want(self, token: str, action: str, generation: int = 1) -> None:
        """Want an attempt in another state."""
        self._set(token, desired=Desired(token=token, action=action, generation=generation))  # type: ignore[arg-type]

    def command(self, token: str, name: str) -> None:
        """Send a command."""
        with self._news:
            self.rows[token].commands.append(Command(token=token, command_id="cmd-1", command=name))
            self._news.notify_all()

    def wait_for(self, predicate: Callable[[], object]) -> None:
        """Wait until something is so on the server."""
        deadline = time.monotonic() + WAIT_S
        while not predicate():
            assert time.monotonic() < deadline, f"still waiting; rows: {self.rows}"
            time.sleep(0.002)

    def finished(self, token: str) -> Finish:
        """Wait for the end of an attempt and return it."""
        self.wait_for(lambda: self.rows[token].finish is not None)
        finish = self.rows[token].finish
        assert finish is not None
        return finish

    def register(self, request: RegisterRequest) -> RegisterReply:
        self._answerable()
        self.registrations.append(request)
        good = {token for token, row in self.rows.items() if row.state in {"offered", "accepted"}}
        return RegisterReply(
            keep=tuple(token for token in request.holding if token in good),
            drop=tuple(token for token in request.holding if token not in good),
            hold_s=5.0,
            lost_after_s=15.0,
        )

    def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        self._answerable()
        with self._news:
            self.exchanges.append(request)
            self._turn += 1
            mine = self._turn
            self._news.notify_all()
            self.outcomes += request.outcomes
            self._reach(request)
            said = self._take(request)
            deadline = time.monotonic() + request.wait_s
            while True:
                reply = self._reply(request, said)
                left = deadline - time.monotonic()
                if reply != ExchangeReply() or self._turn != mine or left <= 0 or self.away:
                    return ExchangeReply() if self._turn != mine and reply == ExchangeReply() else reply
                self._news.wait(left)

    def close(self) -> None:
        with self._news:
            self._news.notify_all()

    def go_away(self) -> None:
        """Stop answering; a long poll breaks."""
        self.away = True
        with self._news:
            self._turn += 1
            self._news.notify_all()

    def _answerable(self) -> None:
        if self.error is not None:
            raise self.error
        if self.away:
            raise UnreachableError("The server at nowhere does not answer.")

    def _set(self, token: str, **changes: Any) -> None:
        with self._news:
            for name, value in changes.items():
                setattr(self.rows[token], name, value)
            self._news.notify_all()

    def _reach(self, request: ExchangeRequest) -> None:
        self.reached += request.reached
        for reached in request.reached:
            row = self.rows.get(reached.token)
            if row is not None and row.desired is not None and row.desired.generation <= reached.generation:
                row.desired = None

    def _take(self, request: ExchangeRequest) -> ExchangeReply:
        accepted, finished, behind, drop = [], [], [], []
        for finish in () if self.loses_finishes else request.finishes:
            row = self.rows.get(finish.token)
            if row is None or row.state == "void":
                drop.append(finish.token)
            elif finish.token in self.behind_once:
                self.behind_once.discard(finish.token)
                behind.append(Behind(token=finish.token, launch="a", cursor=0))
            else:
                if row.finish is None:
                    row.finish, row.state = finish, "finished"
                finished.append(finish.token)
        for token in request.accepts:
            row = self.rows.get(token)
            if row is None or row.state in {"void", "finished"}:
                drop.append(token)
            else:
                self.on_accept(token)
                row.state = "accepted"
                accepted.append(token)
        return ExchangeReply(accepted=tuple(accepted), finished=tuple(finished), behind=tuple(behind), drop=tuple(drop))

    def _reply(self, request: ExchangeRequest, said: ExchangeReply) -> ExchangeReply:
        room: dict[str, int] = dict(request.want)
        offers, commands = [], []
        for row in self.rows.values():
            if row.state == "offered" and room.get(row.offer.slot_class, 0) > 0:
                room[row.offer.slot_class] -= 1
                offers.append(row.offer)
            commands += row.commands
            row.commands = []
        void = {token for token in request.holding if token in self.rows and self.rows[token].state == "void"}
        desired = tuple(row.desired for row in self.rows.values() if row.desired and row.state == "accepted")
        return said.model_copy(
            update={
                "offers": tuple(offers),
                "drop": tuple(void | set(said.drop)),
                "desired": desired,
                "commands": tuple(commands),
            }
        )


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
        self.read = False

    def poll(self) -> FakeEnd | None:
        return self.ended

    def cancel(self, grace_s: float) -> None:
        self.cancels.append(grace_s)
        if self.ended is None:
            self.ended = FakeEnd("cancelled", TaskReason.ABORTED)

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
            self.folder.responses_json.write_text(json.dumps({"ok": True, "launch": self.job.launch}))
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

    def push_artifact(self, task_id: str, name: str, kind: str, path: Path) -> object:
        if self.push_error is not None:
            raise self.push_error
        assert path.exists()
        self.pushed.append((task_id, name, kind))
        return None

    def fetch_artifact(self, digest: str, dest: Path) -> Path:
        self.fetches += 1
        (dest / "rows.jsonl").write_text("{}\n")
        return dest / "rows.jsonl"

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

    def job(self, offer: Offer, *, launch: str, inputs: Mapping[str, str]) -> Job:
        return Job(
            job_id=offer.task_id,
            task_id=offer.task_id,
            attempt=offer.attempt,
            launch=launch,
            kind=offer.kind,
            name=offer.name,
            program="nowhere:main",
            spec=offer.spec,
            inputs=dict(inputs),
        )

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

    def __init__(self, world: World, *, mortal: Mortal | None = None, drain: bool = False, slots: int = 1) -> None:
        mortal = mortal or Mortal()
        self.world = world
        self.mortal = mortal
        self.state = StateFolder(world.results)
        self.state.open()
        self.error: BaseException | None = None
        link = mortal.wrap(world.server, "exchange", "register")
        self.site = Site(
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
        )
        self.worker = Worker(
            "w-1", "session", site=self.site, link=link, probe=probe, slots={"job": slots, "light": 8}, drain=drain
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


def seen(requests: Sequence[ExchangeRequest], token: str) -> list[str]:
    """What a worker said about a token, in order, without repetitions."""
    said: list[str] = []
    for request in requests:
        for word, tokens in (("accept", request.accepts), ("finish", [f.token for f in request.finishes])):
            if token in tokens and (not said or said[-1] != word):
                said.append(word)
    return said
