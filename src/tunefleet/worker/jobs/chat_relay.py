"""Relays chat turns and answers; the worker polls for turns, so that it works behind a NAT."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tunefleet.errors import AuthError, TunefleetError, UnreachableError
from tunefleet.runtime.chat_channel import Call
from tunefleet.schemas.chat import ChatPiece, ChatPoll, ChatTurn
from tunefleet.worker.interfaces import Delivery

logger = logging.getLogger(__name__)

# Long-poll time of one request for turns.
_HOLD_S: Final = 20.0
# Poll interval while the chat process is still loading.
_LOOK_S: Final = 0.3
_PAUSE_S: Final = 2.0
_LOST: Final = ChatPiece(
    error="The chat process died during the answer.", hint="Send the message again when the chat is ready."
)


class ChatRelay:
    """Relays turns and answers while the job of an attempt runs."""

    def __init__(self, task_id: str, folder: Path, delivery: Callable[[], Delivery], *, serves_chat: bool) -> None:
        self._task_id = task_id
        self._folder = folder
        self._open = delivery
        self._serves_chat = serves_chat
        self._stop = threading.Event()
        self._held: dict[str, Call] = {}
        self._waiting: list[ChatTurn] = []
        self._lock = threading.Lock()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """ChatRelay while the body runs."""
        if not self._serves_chat:
            yield
            return
        self._stop.clear()
        threading.Thread(target=self._carry, name=f"chat-{self._task_id}", daemon=True).start()
        try:
            yield
        finally:
            # Not joined: a long poll may be held by the server, and nothing of it needs to be kept.
            self._stop.set()

    def _carry(self) -> None:
        delivery = self._open()
        try:
            while not self._stop.is_set():
                try:
                    self._round(delivery)
                except AuthError as error:
                    logger.info("Stopped relaying chat %s: %s", self._task_id, error)
                    return
                except TunefleetError as error:
                    logger.info("Could not fetch turns of %s: %s", self._task_id, error)
                    self._stop.wait(_PAUSE_S)
        finally:
            delivery.close()

    def _round(self, delivery: Delivery) -> None:
        models = self._models()
        if models is not None:
            with self._lock:
                waiting, self._waiting = self._waiting, []
            for turn in waiting:
                self._begin(delivery, turn)
        with self._lock:
            held = (*self._held, *(turn.id for turn in self._waiting))
        wait_s = 0.0 if models is None or self._waiting else _HOLD_S
        poll = ChatPoll(ready=models is not None, models=models or (), held=held, wait_s=wait_s)
        reply = delivery.chat_turns(self._task_id, poll)
        for turn in reply.turns:
            self._begin(delivery, turn)
        for turn_id in reply.gone:
            with self._lock:
                self._waiting = [turn for turn in self._waiting if turn.id != turn_id]
                call = self._held.get(turn_id)
            if call is not None:
                call.close()
        if reply.end:
            self._ask({"op": "end"})
        if models is None or self._waiting or reply.end:
            self._stop.wait(_LOOK_S)

    def _models(self) -> tuple[str, ...] | None:
        answer = self._ask({"op": "hello"})
        return None if answer is None else tuple(answer.get("models") or ())

    def _ask(self, question: dict[str, Any]) -> dict[str, Any] | None:
        try:
            call = Call(self._folder, question)
        except OSError:
            return None  # not ready yet, or gone; the next round retries
        try:
            return next(call.lines(), None)
        except (OSError, ValueError) as error:
            logger.info("Chat %s does not respond: %s", self._task_id, error)
            return None
        finally:
            call.close()

    def _begin(self, delivery: Delivery, turn: ChatTurn) -> None:
        try:
            call = Call(self._folder, {"op": "turn", "request": turn.request.model_dump(mode="json")})
        except OSError as error:
            logger.info("Chat %s is not ready: %s", self._task_id, error)
            self._later(turn)
            return
        with self._lock:
            self._held[turn.id] = call
        threading.Thread(target=self._answer, args=(delivery, turn, call), name=turn.id, daemon=True).start()

    def _later(self, turn: ChatTurn) -> None:
        """Requeue a turn whose process has just died; the next launch takes it."""
        with self._lock:
            self._waiting.append(turn)

    def _answer(self, delivery: Delivery, turn: ChatTurn, call: Call) -> None:
        pieces: queue.SimpleQueue[ChatPiece] = queue.SimpleQueue()
        # A reader thread of its own: the model must not wait for the request that sends its last chunk.
        threading.Thread(target=_read, args=(call, pieces), name=f"{turn.id}-read", daemon=True).start()
        try:
            done = begun = False
            while not done:
                # Chunks that arrive while the last request is in flight are sent together.
                piece = _joined(pieces)
                done = piece.finish is not None or piece.error is not None
                if not begun and not piece.text and piece.error == _LOST.error:
                    self._later(turn)
                    return
                # A chunk that only reports waiting does not start the answer.
                begun = begun or bool(piece.text) or piece.waiting is None
                if not self._tell(delivery, turn.id, piece):
                    return
        finally:
            call.close()
            with self._lock:
                self._held.pop(turn.id, None)

    def _tell(self, delivery: Delivery, turn_id: str, piece: ChatPiece) -> bool:
        try:
            return delivery.chat_piece(self._task_id, turn_id, piece)
        except UnreachableError as error:
            # No retry: a restarted server has lost the turn, and the client gets an error.
            logger.info("Lost an answer of %s: %s", self._task_id, error)
        except TunefleetError as error:
            logger.warning("The server rejected an answer of %s: %s", self._task_id, error)
        return False


def _read(call: Call, pieces: queue.SimpleQueue[ChatPiece]) -> None:
    try:
        for line in call.lines():
            pieces.put(ChatPiece.model_validate(line))
    except (OSError, ValueError, ValidationError) as error:
        logger.info("Chat answer interrupted: %s", error)
    pieces.put(_LOST)


def _joined(pieces: queue.SimpleQueue[ChatPiece]) -> ChatPiece:
    chunks = [pieces.get()]
    while chunks[-1].finish is None and chunks[-1].error is None:
        try:
            chunks.append(pieces.get_nowait())
        except queue.Empty:
            break
    return chunks[-1].model_copy(update={"text": "".join(piece.text for piece in chunks)})
