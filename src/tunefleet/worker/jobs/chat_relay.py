"""Brings a chat its turns and the server its answers: the worker asks for turns, so that it may sit behind a NAT."""

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

_HOLD_S: Final = 20.0
_LOOK_S: Final = 0.3
_PAUSE_S: Final = 2.0
_LOST: Final = ChatPiece(
    error="The chat's process died in the middle of the answer.", hint="Ask again when it is back."
)


class Relay:
    """Carries turns and answers while the job of an attempt runs."""

    def __init__(self, task_id: str, folder: Path, delivery: Callable[[], Delivery], *, talks: bool) -> None:
        self._task_id = task_id
        self._folder = folder
        self._open = delivery
        self._talks = talks
        self._stop = threading.Event()
        self._held: dict[str, Call] = {}
        self._waiting: list[ChatTurn] = []
        self._lock = threading.Lock()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Carry while the body runs."""
        if not self._talks:
            yield
            return
        self._stop.clear()
        threading.Thread(target=self._carry, name=f"chat-{self._task_id}", daemon=True).start()
        try:
            yield
        finally:
            # Not waited for: a question to the server may be held, and nothing of it is worth keeping.
            self._stop.set()

    def _carry(self) -> None:
        delivery = self._open()
        try:
            while not self._stop.is_set():
                try:
                    self._round(delivery)
                except AuthError as error:
                    logger.info("The chat %s is given up: %s", self._task_id, error)
                    return
                except TunefleetError as error:
                    logger.info("Turns of %s cannot be fetched: %s", self._task_id, error)
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
        asked = ChatPoll(ready=models is not None, models=models or (), held=held, wait_s=wait_s)
        given = delivery.chat_turns(self._task_id, asked)
        for turn in given.turns:
            self._begin(delivery, turn)
        for turn_id in given.gone:
            with self._lock:
                self._waiting = [turn for turn in self._waiting if turn.id != turn_id]
                call = self._held.get(turn_id)
            if call is not None:
                call.close()
        if given.end:
            self._ask({"op": "end"})
        if models is None or self._waiting or given.end:
            self._stop.wait(_LOOK_S)

    def _models(self) -> tuple[str, ...] | None:
        answer = self._ask({"op": "hello"})
        return None if answer is None else tuple(answer.get("models") or ())

    def _ask(self, question: dict[str, Any]) -> dict[str, Any] | None:
        try:
            call = Call(self._folder, question)
        except OSError:
            return None  # not ready yet, or gone; the next round asks again
        try:
            return next(call.lines(), None)
        except (OSError, ValueError) as error:
            logger.info("The chat %s does not answer: %s", self._task_id, error)
            return None
        finally:
            call.close()

    def _begin(self, delivery: Delivery, turn: ChatTurn) -> None:
        try:
            call = Call(self._folder, {"op": "turn", "request": turn.request.model_dump(mode="json")})
        except OSError as error:
            logger.info("The chat %s cannot be asked yet: %s", self._task_id, error)
            self._later(turn)
            return
        with self._lock:
            self._held[turn.id] = call
        threading.Thread(target=self._answer, args=(delivery, turn, call), name=turn.id, daemon=True).start()

    def _later(self, turn: ChatTurn) -> None:
        """Keep a turn whose process has just died: another launch will take it."""
        with self._lock:
            self._waiting.append(turn)

    def _answer(self, delivery: Delivery, turn: ChatTurn, call: Call) -> None:
        pieces: queue.SimpleQueue[ChatPiece] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(call, pieces), name=f"{turn.id}-read", daemon=True).start()
        try:
            whole = begun = False
            while not whole:
                # What comes while the last one is on its way goes together.
                piece = _joined(pieces)
                whole = piece.finish is not None or piece.error is not None
                if not begun and not piece.text and piece.error == _LOST.error:
                    self._later(turn)
                    return
                # What only says why nothing comes is no beginning.
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
            # A server that was restarted knows nothing of the turn, and who asked is told.
            logger.info("An answer of %s is lost: %s", self._task_id, error)
        except TunefleetError as error:
            logger.warning("An answer of %s is not taken: %s", self._task_id, error)
        return False


def _read(call: Call, pieces: queue.SimpleQueue[ChatPiece]) -> None:
    try:
        for line in call.lines():
            pieces.put(ChatPiece.model_validate(line))
    except (OSError, ValueError, ValidationError) as error:
        logger.info("A chat's answer broke off: %s", error)
    pieces.put(_LOST)


def _joined(pieces: queue.SimpleQueue[ChatPiece]) -> ChatPiece:
    found = [pieces.get()]
    while found[-1].finish is None and found[-1].error is None:
        try:
            found.append(pieces.get_nowait())
        except queue.Empty:
            break
    return found[-1].model_copy(update={"text": "".join(piece.text for piece in found)})
