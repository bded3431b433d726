"""The engine of a job: a process of its own, found warm from the job before or started, and asked over its socket.

Needs no torch: who asks may be a light process. An engine that dies while it is asked is started again, and what was
not answered is asked again.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

from filelock import FileLock

from tunefleet.errors import MachineError, UnreachableError
from tunefleet.runtime import envs
from tunefleet.runtime.warm import engine_registry
from tunefleet.settings import EngineSettings, load
from tunefleet.workloads.engine import messages as wire
from tunefleet.workloads.engine.protocol import Answer, Choice, EngineModel, Request

logger = logging.getLogger(__name__)

_TRIES: Final = 3
_BIND_S: Final = 60.0
_PARTING_S: Final = 2.0
"""How long an engine may take to notice that the one before has hung up."""
_LOOK_S: Final = 0.05
_TAIL_BYTES: Final = 2000


def connect(
    model: EngineModel,
    *,
    gpus: Sequence[str] = (),
    idle_s: float | None = None,
    name: str | None = None,
    apart: str = "",
    say: Callable[[str], None] | None = None,
) -> WarmEngine:
    """Return the warm engine of these GPUs with a model loaded; it is started, or replaced, if need be.

    Raises:
        ModelError: If the model cannot be loaded.
        MachineError: If no engine can be started here.
    """
    settings = load(EngineSettings, _env_file=None)
    site = name or str(settings.endpoints_dir.absolute())
    start = _Start(model, tuple(gpus), site, settings.engine_idle_s if idle_s is None else idle_s, apart)
    return WarmEngine(start, say or logger.warning)


class WarmEngine:
    """A connection to an engine; see `protocol.Engine`. Safe to use from several threads."""

    def __init__(self, start: _Start, say: Callable[[str], None]) -> None:
        self._start = start
        self._say = say
        self._lock = threading.RLock()
        self._held: Line | None = None
        self._ready: dict[str, Any] = {}
        self._hold()

    @property
    def name(self) -> str:
        """`transformers` or `vllm`."""
        return str(self._ready["name"])

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._ready["has_template"])

    @property
    def was_loaded(self) -> bool:
        """Whether the model was there already, loaded for somebody before."""
        return self._start.found

    @property
    def pid(self) -> int:
        """The engine's process."""
        return int(self._ready["pid"])

    def render(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """Apply the chat template; see `Engine.render`."""
        with self._lock:
            answer = self._again(lambda: self._ask({"op": "render", "messages": list(messages), "kwargs": kwargs}))
        return str(answer["text"])

    def generate(self, requests: Sequence[Request]) -> Iterator[Answer]:
        """Answer requests; see `Engine.generate`. What an engine that died has answered is not asked again."""
        waiting = {request.key: request for request in requests}
        if len(waiting) != len(requests):
            raise ValueError("Two requests of one call have the same key.")
        failures = 0
        while waiting:
            before = len(waiting)
            try:
                with self._line() as line:
                    line.send({"op": "generate"}, *({"request": dataclasses.asdict(each)} for each in waiting.values()))
                    line.send({})
                    while "end" not in (message := line.read()):
                        if "say" in message:
                            self._say(str(message["say"]))
                            continue
                        answer = wire.answer_of(message["answer"])
                        del waiting[answer.key]
                        yield answer
                    return
            except BrokenLineError:
                failures = failures + 1 if len(waiting) == before else 1
                self._died(failures)

    def stream(self, request: Request) -> Generator[str, None, Choice]:
        """Answer one request piece by piece; see `Engine.stream`."""
        if request.sampling.seed is None:
            # If the engine dies in the middle another one goes on with the same answer.
            seed = random.getrandbits(63)
            request = dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, seed=seed))
        told, failures = "", 0
        while True:
            text = ""
            try:
                with self._line() as line:
                    line.send({"op": "stream", "request": dataclasses.asdict(request)})
                    while "piece" in (message := line.read()):
                        text += str(message["piece"])
                        if not text.startswith(told[: len(text)]):
                            raise UnreachableError("The engine died in the middle of an answer.", hint="Ask again.")
                        if len(text) > len(told):
                            piece, told = text[len(told) :], text
                            yield piece
                    return wire.choice_of(message["choice"])
            except BrokenLineError:
                failures += 1
                self._died(failures)

    def close(self) -> None:
        """Let go of the engine; it stays warm for who wants the same model."""
        with self._lock:
            if self._held is not None:
                self._held.close()
            self._held = None

    def _hold(self) -> None:
        with self._lock:
            self._held, self._ready = self._start.open()

    def _line(self) -> Line:
        for attempt in range(1, _TRIES + 1):
            connection = engine_registry.connect(self._start.base)
            if connection is not None:
                return Line(connection)
            self._died(attempt)
        raise MachineError("The engine cannot be reached.", hint="See its log.", detail=self._start.tail())

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._held is None:
            raise BrokenLineError
        self._held.send(message)
        return self._held.read()

    def _again(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        for failures in range(1, _TRIES + 1):
            try:
                return ask()
            except BrokenLineError:
                self._died(failures)
        return ask()

    def _died(self, failures: int) -> None:
        """Start the engine again, unless it dies of what it is asked."""
        tail = self._start.tail()
        if failures >= _TRIES:
            raise MachineError(
                f"The engine died {failures} times without an answer.",
                hint=f"The end of its log: {tail[-300:]}" if tail else "It left no log.",
                detail=tail,
            )
        self._say("The engine has died; it is started again, and asked again what it has not answered.")
        self.close()
        self._hold()


class _Start:
    """Finds the process of an engine, or starts it; one at a time does so."""

    def __init__(self, model: EngineModel, gpus: tuple[str, ...], site: str, idle_s: float, apart: str) -> None:
        self.base = engine_registry.base_of(gpus, site, apart)
        self._model = model
        self._digest = wire.digest(model)
        self._gpus = gpus
        self._site = site
        self._idle_s = idle_s
        self.found = False

    def open(self) -> tuple[Line, dict[str, Any]]:
        """Return a connection that keeps the engine alive, and what the engine says of itself."""
        for _ in range(_TRIES):
            with FileLock(self.base.with_suffix(".start")):
                found = self._find()
                self.found = found is not None
                line = found if found is not None else self._spawn()
                try:
                    # Who comes next finds it loading, and waits with us.
                    line.send({"op": "hello"})
                except BrokenLineError:
                    line.close()
                    continue
            try:
                return line, line.read()["ready"]
            except BrokenLineError:
                line.close()
            except BaseException:
                line.close()
                raise
        raise self._unstarted()

    def tail(self) -> str:
        """Return the end of the engine's log."""
        try:
            return self.base.with_suffix(".log").read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""

    def _find(self) -> Line | None:
        connection = engine_registry.connect(self.base)
        if connection is None:
            return None
        other = next((each for each in engine_registry.running() if each.base == self.base), None)
        if other is None or other.digest == self._digest:
            return Line(connection)
        connection.close()
        if engine_registry.leave(other, patience_s=_BIND_S if self._gpus else _PARTING_S):
            return None
        if self._gpus:
            raise MachineError(
                f"The engine on {', '.join(self._gpus)} has {other.model} loaded and is in use.",
                hint="Wait until that task has ended.",
            )
        # On a CPU two models may live beside each other: they share its memory, and no device.
        self.base = engine_registry.base_of(self._gpus, self._site, self._digest)
        logger.info("%s is in use here: %s gets an engine of its own", other.model, self._model.identifier)
        return self._find()

    def _spawn(self) -> Line:
        python = sys.executable
        if self._model.engine != "transformers":
            python = str(envs.at(self._model.engine).python)
        about = {"model": dataclasses.asdict(self._model), "gpus": list(self._gpus), "site": self._site}
        command = [python, "-P", "-m", "tunefleet.workloads.engine.server", str(self.base), str(self._idle_s)]
        with self.base.with_suffix(".log").open("ab") as log:
            log.truncate(0)
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment(),
                # It must outlive the job: neither its session nor its process group, and none of its locks.
                start_new_session=True,
                close_fds=True,
                cwd="/",
            )
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps(about).encode())
        threading.Thread(target=process.wait, name=f"engine-{process.pid}", daemon=True).start()
        return self._reach(process)

    def _reach(self, process: subprocess.Popen[bytes]) -> Line:
        deadline = time.monotonic() + _BIND_S
        while (connection := engine_registry.connect(self.base)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise self._unstarted()
            time.sleep(_LOOK_S)
        return Line(connection)

    def _unstarted(self) -> MachineError:
        tail = self.tail()
        return MachineError(
            f"The engine for {self._model.identifier} does not start.",
            hint=f"The end of its log: {tail[-300:]}" if tail else "It left no log.",
            detail=tail,
        )

    def _environment(self) -> dict[str, str]:
        found = engine_registry.environment(self._gpus)
        if self._model.engine == "vllm":
            found |= {name: str(value) for name, value in (self._model.options.get("env_vars") or {}).items()}
        return found


class BrokenLineError(Exception):
    """The engine has closed the connection, most likely by dying."""


class Line:
    """A connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    def send(self, *messages: dict[str, Any]) -> None:
        """Send messages.

        Raises:
            BrokenLineError: If nobody is there.
        """
        try:
            for message in messages:
                self._connection.sendall(wire.line(message))
        except OSError as error:
            raise BrokenLineError from error

    def read(self) -> dict[str, Any]:
        """Return the next message; waits for it.

        Raises:
            BrokenLineError: If nobody is there any more.
            Exception: What the engine has raised.
        """
        try:
            text = self._lines.readline()
        except OSError as error:
            raise BrokenLineError from error
        if not text.endswith(b"\n"):
            raise BrokenLineError
        message: dict[str, Any] = json.loads(text)
        if "error" in message:
            raise wire.raised(message["error"])
        return message

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
