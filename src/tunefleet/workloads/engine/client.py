"""Client of an engine process, which is reused from an earlier job or started, and called over a Unix socket.

Does not import torch, so that inline tasks can use it. An engine that dies during a call is restarted, and unanswered
requests are sent again.
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
from tunefleet.workloads.engine import protocol
from tunefleet.workloads.engine.protocol import Answer, Choice, EngineModel, Request

logger = logging.getLogger(__name__)

_TRIES: Final = 3
# How long a new process may take to open its socket: importing the libraries from a cold disk takes long.
_BIND_S: Final = 60.0
# How long an engine may take to notice that its previous client has disconnected.
_PARTING_S: Final = 2.0
_POLL_S: Final = 0.05
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
    """Connect to the warm engine of these GPUs with a model loaded; starts or replaces it if necessary.

    Raises:
        ModelError: If the model cannot be loaded.
        MachineError: If no engine can be started.
    """
    settings = load(EngineSettings, _env_file=None)
    site = name or str(settings.endpoints_dir.absolute())
    start = _EngineProcess(model, tuple(gpus), site, settings.engine_idle_s if idle_s is None else idle_s, apart)
    return WarmEngine(start, say or logger.warning)


class WarmEngine:
    """A connection to an engine; see `protocol.Engine`. Safe to use from several threads."""

    def __init__(self, start: _EngineProcess, say: Callable[[str], None]) -> None:
        self._start = start
        self._say = say
        self._lock = threading.RLock()
        self._keepalive: EngineConnection | None = None
        self._ready: dict[str, Any] = {}
        self._open()

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
        """Whether the model was already loaded, for an earlier client."""
        return self._start.found

    @property
    def pid(self) -> int:
        """The process id of the engine."""
        return int(self._ready["pid"])

    def render(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """Apply the chat template; see `Engine.render`."""
        with self._lock:
            answer = self._retry(lambda: self._ask({"op": "render", "messages": list(messages), "kwargs": kwargs}))
        return str(answer["text"])

    def generate(self, requests: Sequence[Request]) -> Iterator[Answer]:
        """Answer requests; see `Engine.generate`. Requests answered before an engine died are not repeated."""
        waiting = {request.key: request for request in requests}
        if len(waiting) != len(requests):
            raise ValueError("Two requests of one call have the same key.")
        failures = 0
        while waiting:
            before = len(waiting)
            try:
                with self._connect() as line:
                    line.send({"op": "generate"}, *({"request": dataclasses.asdict(each)} for each in waiting.values()))
                    line.send({})
                    while "end" not in (message := line.read()):
                        if "say" in message:
                            self._say(str(message["say"]))
                            continue
                        answer = protocol.answer_of(message["answer"])
                        del waiting[answer.key]
                        yield answer
                    return
            except ConnectionLostError:
                # An engine that answered something makes progress; only failures without any answer add up.
                failures = failures + 1 if len(waiting) == before else 1
                self._restart(failures)

    def stream(self, request: Request) -> Generator[str, None, Choice]:
        """Stream the answer to one request; see `Engine.stream`."""
        if request.sampling.seed is None:
            # With a seed, another engine can continue the same answer if this one dies in the middle.
            seed = random.getrandbits(63)
            request = dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, seed=seed))
        sent, failures = "", 0
        while True:
            text = ""
            try:
                with self._connect() as line:
                    line.send({"op": "stream", "request": dataclasses.asdict(request)})
                    while "piece" in (message := line.read()):
                        text += str(message["piece"])
                        # The repeated answer must begin with the text that the caller already has.
                        if not text.startswith(sent[: len(text)]):
                            raise UnreachableError("The engine died during an answer.", hint="Try again.")
                        if len(text) > len(sent):
                            piece, sent = text[len(sent) :], text
                            yield piece
                    return protocol.choice_of(message["choice"])
            except ConnectionLostError:
                failures += 1
                self._restart(failures)

    def close(self) -> None:
        """Disconnect; the engine stays warm for clients with the same model."""
        with self._lock:
            if self._keepalive is not None:
                self._keepalive.close()
            self._keepalive = None

    def _open(self) -> None:
        with self._lock:
            self._keepalive, self._ready = self._start.open()

    def _connect(self) -> EngineConnection:
        for attempt in range(1, _TRIES + 1):
            connection = engine_registry.connect(self._start.base)
            if connection is not None:
                return EngineConnection(connection)
            self._restart(attempt)
        raise MachineError("The engine cannot be reached.", hint="See its log.", detail=self._start.tail())

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._keepalive is None:
            raise ConnectionLostError
        self._keepalive.send(message)
        return self._keepalive.read()

    def _retry(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        for failures in range(1, _TRIES + 1):
            try:
                return ask()
            except ConnectionLostError:
                self._restart(failures)
        return ask()

    def _restart(self, failures: int) -> None:
        """Restart the engine, unless it dies repeatedly."""
        tail = self._start.tail()
        if failures >= _TRIES:
            raise MachineError(
                f"The engine died {failures} times without an answer.",
                hint=f"The end of its log: {tail[-300:]}" if tail else "It left no log.",
                detail=tail,
            )
        self._say("The engine died. It is being restarted, and unanswered requests will be sent again.")
        self.close()
        self._open()


class _EngineProcess:
    """Finds the process of an engine or starts it, one client at a time."""

    def __init__(self, model: EngineModel, gpus: tuple[str, ...], site: str, idle_s: float, apart: str) -> None:
        self.base = engine_registry.base_of(gpus, site, apart)
        self._model = model
        self._digest = protocol.model_digest(model)
        self._gpus = gpus
        self._site = site
        self._idle_s = idle_s
        self.found = False

    def open(self) -> tuple[EngineConnection, dict[str, Any]]:
        """Return a connection that keeps the engine alive, and the engine's description."""
        for _ in range(_TRIES):
            with FileLock(self.base.with_suffix(".start")):
                found = self._find()
                self.found = found is not None
                line = found if found is not None else self._spawn()
                try:
                    # Inside the lock only until the engine knows this client: loading may take minutes, and the next
                    # client finds the loading engine and waits for it as well.
                    line.send({"op": "hello"})
                except ConnectionLostError:
                    line.close()
                    continue
            try:
                return line, line.read()["ready"]
            except ConnectionLostError:
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

    def _find(self) -> EngineConnection | None:
        connection = engine_registry.connect(self.base)
        if connection is None:
            return None
        other = next((each for each in engine_registry.running() if each.base == self.base), None)
        if other is None or other.digest == self._digest:
            return EngineConnection(connection)
        connection.close()
        if engine_registry.leave(other, patience_s=_BIND_S if self._gpus else _PARTING_S):
            return None
        if self._gpus:
            raise MachineError(
                f"The engine on {', '.join(self._gpus)} has {other.model} loaded and is in use.",
                hint="Wait until that task has ended.",
            )
        # On a CPU two engines can run next to each other: they share memory but no device.
        self.base = engine_registry.base_of(self._gpus, self._site, self._digest)
        logger.info("The engine with %s is in use: %s gets a separate engine", other.model, self._model.identifier)
        return self._find()

    def _spawn(self) -> EngineConnection:
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
                # The engine outlives the job, so it must not be in its session or process group or hold its locks.
                start_new_session=True,
                close_fds=True,
                cwd="/",
            )
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps(about).encode())
        # Reaps the process when it ends, which would otherwise stay as a zombie.
        threading.Thread(target=process.wait, name=f"engine-{process.pid}", daemon=True).start()
        return self._reach(process)

    def _reach(self, process: subprocess.Popen[bytes]) -> EngineConnection:
        deadline = time.monotonic() + _BIND_S
        while (connection := engine_registry.connect(self.base)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise self._unstarted()
            time.sleep(_POLL_S)
        return EngineConnection(connection)

    def _unstarted(self) -> MachineError:
        tail = self.tail()
        return MachineError(
            f"The engine for {self._model.identifier} failed to start.",
            hint=f"The end of its log: {tail[-300:]}" if tail else "It left no log.",
            detail=tail,
        )

    def _environment(self) -> dict[str, str]:
        found = engine_registry.environment(self._gpus)
        if self._model.engine == "vllm":
            found |= {name: str(value) for name, value in (self._model.options.get("env_vars") or {}).items()}
        return found


class ConnectionLostError(Exception):
    """The engine has closed the connection, most likely by dying."""


class EngineConnection:
    """A connection to an engine."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    def send(self, *messages: dict[str, Any]) -> None:
        """Send messages.

        Raises:
            BrokenLineError: If the connection is closed.
        """
        try:
            for message in messages:
                self._connection.sendall(protocol.to_line(message))
        except OSError as error:
            raise ConnectionLostError from error

    def read(self) -> dict[str, Any]:
        """Wait for the next message and return it.

        Raises:
            BrokenLineError: If the connection is closed.
            Exception: The exception raised in the engine.
        """
        try:
            text = self._lines.readline()
        except OSError as error:
            raise ConnectionLostError from error
        if not text.endswith(b"\n"):
            raise ConnectionLostError
        message: dict[str, Any] = json.loads(text)
        if "error" in message:
            raise protocol.error_of(message["error"])
        return message

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
