"""A chat session: load the model, listen, answer turns, write the result."""

from __future__ import annotations

import json
import logging
import os
import re
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tunefleet.errors import InputError, TunefleetError
from tunefleet.fsutil import write_file
from tunefleet.runtime.chat_channel import address
from tunefleet.runtime.warm.engine_registry import peer_uid
from tunefleet.schemas.chat import ChatPiece, ChatRequest, ChatUsage
from tunefleet.spec import ChatTaskSpec
from tunefleet.spec.options.generation import InferenceSpec
from tunefleet.trainer_control import JobSession
from tunefleet.workloads.chat.models import Models
from tunefleet.workloads.common.job import open_task
from tunefleet.workloads.common.job_secrets import redacted
from tunefleet.workloads.engine.protocol import Engine, Request, Sampling
from tunefleet.workloads.faults import RequestError
from tunefleet.workloads.inference.questions import Question
from tunefleet.workloads.inference.runner import render, sampling_of

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.2
_STATE: Final = "chat.json"
_AS_THEY_ARE = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
)  # fmt: skip
_TOO_LONG: Final = re.compile(r"Prompt \d+ has (\d+) tokens, but the model supports (\d+)")


def run(folder: Path) -> None:
    """Run the chat session of a job folder.

    Raises:
        InputError: If model or options cannot be used.
    """
    task = open_task(folder, ChatTaskSpec)
    spec, session, journal = task.spec, task.session, task.journal
    session.status.write(state="running", phase="loading")
    models = Models(
        task.job,
        spec,
        task.workspace,
        say=lambda text: journal.event("engine.said", text, "warning"),
        note=lambda text: journal.event("chat.loading", text),
    )
    try:
        chat = Chat(folder, spec, models, session)
        session.status.write(phase="ready")
        journal.event("chat.ready", f"The chat is ready: {', '.join(models.names)}.", data={"models": models.names})
        why = chat.hold()
        journal.event("chat.ended", f"The chat has ended: {why}.", data=dict(chat.counts))
    finally:
        models.close()
    result = {"ok": True, "model": spec.model.source.identifier, "models": list(models.names), "ended": why}
    usage = {name: chat.counts[name] for name in ("prompt_tokens", "completion_tokens")}
    whole = {**result, "turns": chat.counts["turns"], "usage": usage}
    write_file(task.folder.responses_json, json.dumps(whole, indent=1).encode())


class Chat:
    """Listens on the socket and answers."""

    def __init__(self, folder: Path, spec: ChatTaskSpec, models: Models, session: JobSession) -> None:
        self._address = address(folder)
        self._state = folder / _STATE
        self._spec = spec
        self._models = models
        self._session = session
        self._lock = threading.Lock()
        self._answering = 0
        self._asked_at = time.monotonic()
        self._ended = threading.Event()
        self.counts = self._counted()

    def hold(self) -> str:
        """Answer until the session ends; return the reason."""
        # A killed launch leaves its socket file, on which bind would fail.
        self._address.unlink(missing_ok=True)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(self._address))
                listener.listen(64)
                threading.Thread(target=self._accept, args=(listener,), name="accept", daemon=True).start()
                return self._wait()
        finally:
            self._address.unlink(missing_ok=True)

    def _wait(self) -> str:
        while not self._ended.wait(_LOOK_S):
            with self._lock:
                idle_s = 0.0 if self._answering else time.monotonic() - self._asked_at
            if idle_s > self._spec.idle_s:
                return "idle"
        return "asked"

    def _accept(self, listener: socket.socket) -> None:
        while not self._ended.is_set():
            try:
                connection = listener.accept()[0]
            except OSError:
                return  # the session is over
            threading.Thread(target=self._talk, args=(connection,), name="turn", daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as lines:
                if peer_uid(connection) != os.geteuid():
                    logger.warning("Refused a connection of another user")
                    return
                question = lines.readline()
                if question.endswith(b"\n"):
                    self._handle(connection, json.loads(question))
        except (OSError, ValueError) as error:
            logger.info("A connection was closed: %s", error)

    def _handle(self, connection: socket.socket, question: dict[str, Any]) -> None:
        op = question.get("op")
        if op == "hello":
            _send(connection, {"models": list(self._models.names)})
        elif op == "end":
            _send(connection, {})
            self._ended.set()
        elif op == "turn":
            self._turn(connection, question["request"])

    def _turn(self, connection: socket.socket, asked: dict[str, Any]) -> None:
        with self._lock:
            self._answering += 1
        try:
            pieces = answer(self._models, self._spec.inference, ChatRequest.model_validate(asked))
            for piece in pieces:
                if _gone(connection):
                    # Closing the generator stops the generation in the engine.
                    pieces.close()  # type: ignore[attr-defined]
                    return
                if piece.usage is not None:
                    self._count(piece)  # before it is sent: the client may end the session right after the last piece
                _send(connection, piece.model_dump(mode="json", exclude_none=True))
        except TunefleetError as error:
            failed = ChatPiece(error=redacted(error.message), hint=error.hint)
            _send(connection, failed.model_dump(mode="json"))
        except OSError:
            raise
        except Exception as error:
            # The top of the thread: whatever fails, the client gets an error.
            logger.exception("A turn failed")
            message = redacted(f"{type(error).__name__}: {error}")
            _send(connection, ChatPiece(error=message[:5000]).model_dump(mode="json"))
        finally:
            with self._lock:
                self._answering -= 1
                self._asked_at = time.monotonic()

    def _count(self, piece: ChatPiece) -> None:
        usage = piece.usage
        assert usage is not None
        with self._lock:
            self.counts["turns"] += 1
            self.counts["prompt_tokens"] += usage.prompt_tokens
            self.counts["completion_tokens"] += usage.completion_tokens
            # On disk after each turn, so that a relaunch continues the counts.
            write_file(self._state, json.dumps(self.counts).encode())
            self._session.status.write(step=self.counts["turns"])

    def _counted(self) -> dict[str, int]:
        try:
            found = json.loads(self._state.read_bytes())
        except FileNotFoundError:
            found = {}
        return {name: int(found.get(name, 0)) for name in ("turns", "prompt_tokens", "completion_tokens")}


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _gone(connection: socket.socket) -> bool:
    # Readable without data means that the client has closed the connection.
    # Not `select`: it cannot watch a descriptor beyond 1023.
    watched = select.poll()
    watched.register(connection, select.POLLIN)
    return bool(watched.poll(0)) and not connection.recv(1, socket.MSG_PEEK)


@dataclass(frozen=True, slots=True)
class Conversation(Question):
    """A conversation, as one question."""

    sent: Sequence[dict[str, str]] = ()

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages as they were sent."""
        return list(self.sent)


class NamedModels(Protocol):
    """The models that a request may name."""

    default: str

    def is_open(self, name: str) -> bool:
        """Return whether the engine of a model is loaded, or there is no such model."""
        ...

    def of(self, name: str | None) -> tuple[Engine, str | None]:
        """Return the engine for a request, and the name of the adapter in it."""
        ...


def answer(models: NamedModels, inference: InferenceSpec, request: ChatRequest) -> Iterator[ChatPiece]:
    """Yield an answer piece by piece; the last one holds the finish reason.

    Raises:
        InputError: If it cannot be answered.
    """
    wanted = request.model or models.default
    if not models.is_open(wanted):
        yield ChatPiece(waiting=f"Loading the model for {wanted!r}.")
    engine, adapter = models.of(wanted)
    messages = [message.model_dump(exclude_none=True) for message in request.messages]
    if inference.system_prompt and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": inference.system_prompt})
    prompt, rendered = render(engine, Conversation(request.messages[-1].content, sent=messages), inference)
    pieces = engine.stream(Request(0, prompt, sampling(inference, request), adapter, rendered))
    try:
        while True:
            yield ChatPiece(text=next(pieces))
    except StopIteration as end:
        choice = end.value
        usage = ChatUsage(prompt_tokens=choice.prompt_tokens, completion_tokens=choice.tokens)
        yield ChatPiece(finish=choice.finish_reason, usage=usage)
    except RequestError as error:
        raise _of_conversation(error) from error
    finally:
        pieces.close()


def _of_conversation(error: RequestError) -> InputError:
    """Convert a prompt error to terms of a chat, which has no numbered prompts."""
    found = _TOO_LONG.match(error.message)
    if found is None:
        return error
    return InputError(
        f"The conversation has {found[1]} tokens, but the model supports {found[2]} with the answer.",
        hint="/reset starts a new chat; with an API client, omit older messages.",
    )


def sampling(inference: InferenceSpec, request: ChatRequest) -> Sampling:
    """Return the sampling parameters of a turn: its own, else those of the spec."""
    changes: dict[str, Any] = {name: getattr(request, name) for name in _AS_THEY_ARE}
    changes["max_tokens"] = request.max_completion_tokens or request.max_tokens
    changes["stop"] = request.stop or None
    wanted = request.response_format
    if wanted is not None and wanted.type == "json_object":
        changes["schema"] = json.dumps({"type": "object"})
    elif wanted is not None and wanted.type == "json_schema":
        schema = (wanted.json_schema or {}).get("schema")
        if not isinstance(schema, dict):
            raise InputError("response_format has no schema.", hint='Write {"json_schema": {"schema": {…}}}.')
        changes["schema"] = json.dumps(schema)
    defaults = sampling_of(inference)
    found = {name: getattr(defaults, name) for name in Sampling.__dataclass_fields__}
    return Sampling(**{**found, **{name: value for name, value in changes.items() if value is not None}})
